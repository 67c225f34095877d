// The conversation of a rollout: an exchange for each call, with what was new in its request, and its reply.

/** Returns the key by which the timeline finds the exchange of a call. */
function exchangeKey(attempt, place) {
  return `${attempt.attempt}-${place}`;
}

/** Opens the exchange of a call with its whole request. */
function openCall(pane, key) {
  const found = pane.querySelector(`[data-exchange="${key}"]`);
  if (!found) return;
  for (let each = found; each; each = each.parentElement.closest("details")) each.open = true;
  found.fill();
  const earlier = found.querySelector(":scope > .exchange-body > .earlier");
  if (earlier) earlier.open = true;
  found.scrollIntoView({ block: "start" });
  found.querySelector("summary").focus({ preventScroll: true });
}

/** Returns the conversation of a rollout: its calls, the last attempt first, or its transcript if no request was kept. */
function conversation(row, detail) {
  const kept = detail.attempts.some(attempt => attempt.calls.some(call => call.asked));
  if (!kept) {
    const why = detail.attempts.flatMap(attempt => attempt.calls.map(call => call.missing))[0];
    return [el("h3", {}, "Transcript"), why ? el("p", { class: "soft" }, `Requests and replies are missing: ${why}.`) : null, transcript(detail)];
  }
  const [last, ...earlier] = [...detail.attempts].reverse();
  return [el("h3", {}, "Conversation"), exchanges(row, detail, last),
    earlier.map(attempt => el("details", {}, el("summary", {}, `Conversation of attempt ${attempt.attempt}: ${attempt.status}`), exchanges(row, detail, attempt))),
    fold("Transcript that the scorers read", () => transcript(detail))];
}

/** Returns the exchanges of an attempt. Calls of roles are inside the call of the agent before them. */
function exchanges(row, detail, attempt) {
  const children = new Map([[-1, []]]);
  let parent = -1;
  attempt.calls.forEach((call, place) => {
    if (!call.role) {
      parent = place;
      children.set(place, []);
    } else children.get(parent).push(place);
  });
  const build = (place, nested) => exchange({ row, detail, attempt, place }, (children.get(place) ?? []).map(each => build(each, true)), nested);
  const shown = [...children.get(-1), ...[...children.keys()].filter(place => place >= 0)];
  return shown.length ? shown.map(place => build(place, Boolean(attempt.calls[place].role))) : el("p", { class: "soft" }, "No LLM call was made.");
}

/** Returns a call. Its content is built when it is opened; a nested one is closed at first. */
function exchange(at, inside, nested) {
  const call = at.attempt.calls[at.place];
  const holder = el("details", { class: "exchange", "data-exchange": exchangeKey(at.attempt, at.place) }, exchangeTitle(call, at.place));
  const body = el("div", { class: "exchange-body" });
  holder.fill = () => { if (!body.children.length) furnish(body, {}, exchangeBody(at, call)); };
  holder.addEventListener("toggle", () => { if (holder.open) holder.fill(); });
  holder.append(body);
  if (inside.length) holder.append(el("div", { class: "inside" }, inside));
  if (!nested) {
    holder.fill();
    holder.open = true;
  }
  return holder;
}

function exchangeTitle(call, place) {
  const [called, , , ended] = call.at;
  const facts = [call.model, duration(ended - called), `${figure(call.tokens[0])} \u2192 ${figure(call.tokens[2])} tokens`].filter(Boolean).join(", ");
  return el("summary", {}, el("b", {}, `Call ${place + 1}`), call.role ? el("span", { class: "mark" }, call.role) : null,
    el("span", { class: "soft" }, ` ${facts}`), call.error ? el("span", { class: "bad" }, ` ${call.error}`) : null);
}

/** Returns the request, the reply, and both as JSON. */
function exchangeBody(at, call) {
  const { detail } = at;
  const error = call.error ? el("p", { class: "bad" }, `${call.error}${call.status ? ` (HTTP ${call.status})` : ""}: ${call.why}`) : null;
  if (!call.asked) return [error, el("p", { class: "soft aside" }, `The request is missing: ${call.missing}.`)];
  const prompt = promptOf(at.attempt, at.place).map(detail.value), names = namesOf(prompt);
  const replied = call.replied ? call.replied.messages.map(number => message(detail.value(number))) : [];
  return [...requestParts(at, call, prompt, names), replied.length ? el("h4", { class: "turn" }, "reply") : null,
    replied.length ? el("ol", { class: "transcript" }, replied) : null, error,
    replied.length || error ? null : el("p", { class: "soft aside" }, call.replied ? "The reply has no message." : "The reply was not kept."),
    el("div", { class: "raws" }, fold("Request as JSON", () => copyable(json(bodyOf(at)))),
      call.replied ? fold("Reply as JSON", () => copyable(json(replyOf(detail, call)))) : null, fold("curl", () => copyable(curlOf(at))))];
}

/** Returns the messages of a request. Those at its beginning that the call before had are folded, and new ones are marked. */
function requestParts(at, call, prompt, names) {
  const before = call.asked.from, isNew = newness(at, call);
  const first = prompt.findIndex((each, place) => isNew(place));
  const known = before < 0 ? 0 : first < 0 ? prompt.length : first;
  const dropped = before < 0 ? 0 : promptOf(at.attempt, before).length - call.asked.same;
  const show = (each, place) => message(each, names, before >= 0 && isNew(place) ? "new" : "");
  return [el("h4", { class: "turn" }, "request"),
    known ? fold(`${amountOf(known, "message")} that call ${before + 1} had or answered`, () => el("ol", { class: "transcript" }, prompt.slice(0, known).map(show)), { class: "earlier" }) : null,
    dropped > 0 ? el("p", { class: "soft aside" }, `The last ${dropped === 1 ? "message" : amountOf(dropped, "message")} of call ${before + 1} ${dropped === 1 ? "is" : "are"} not in this request.`) : null,
    known < prompt.length ? el("ol", { class: "transcript" }, prompt.slice(known).map((each, place) => show(each, place + known)))
      : el("p", { class: "soft aside" }, prompt.length ? "No new message." : "The request has no messages.")];
}

/** Returns a function that says whether the message at a place of the prompt is neither in the request nor in the reply before it. */
function newness({ detail, attempt, place }, call) {
  const before = attempt.calls[call.asked.from], numbers = promptOf(attempt, place);
  if (!before) return () => true;
  const replied = before.replied ? before.replied.messages : [];
  const had = new Set([...promptOf(attempt, call.asked.from), ...replied]);
  const echoes = new Set(replied.map(number => essence(detail.value(number))));
  return index => !had.has(numbers[index]) && !echoes.has(essence(detail.value(numbers[index])));
}

/** Returns what an agent repeats of a reply: text and tool calls, but often not the reasoning and empty fields. */
function essence(each) {
  if (!each || each.role !== "assistant") return Symbol("another message");
  const calls = Array.isArray(each.tool_calls) ? each.tool_calls.map(call => [call?.function?.name, pretty(call?.function?.arguments)]) : [];
  return JSON.stringify([contentText(each.content ?? ""), calls]);
}

/** Returns the numbers of the messages of a prompt: in the form of Chat Completions, or in that of its API if `raw` is set. */
function promptOf(attempt, place, raw = false) {
  const { asked } = attempt.calls[place];
  if (!asked) return [];
  if (raw && !asked.raw) return promptOf(attempt, place);
  const part = raw ? asked.raw : asked, known = raw ? "rawPrompt" : "prompt";
  asked[known] ??= part.same ? [...promptOf(attempt, asked.from, raw).slice(0, part.same), ...part.then] : part.then;
  return asked[known];
}

/** Returns the body of a request as the agent sent it. Large parts that were not kept are null. */
function bodyOf({ detail, attempt, place }) {
  const form = detail.value(attempt.calls[place].asked.form);
  if (form.body === undefined) return form.text;
  const body = { ...form.body };
  for (const [name, number] of Object.entries(form.parts)) body[name] = number === null ? null : detail.value(number);
  const messages = promptOf(attempt, place, true).map(detail.value);
  if (form.listed) body[form.listed] = messages;
  if (form.joined) body[form.joined] = messages.join("");
  return body;
}

/** Returns the reply as the server would have sent it without streaming. */
function replyOf(detail, { replied }) {
  const reply = detail.value(replied.value);
  if (!Array.isArray(reply?.choices) || reply.choices.length !== replied.messages.length) return reply;
  return { ...reply, choices: reply.choices.map((choice, place) => (choice.message === null ? { ...choice, message: detail.value(replied.messages[place]) } : choice)) };
}

/** Returns a command that repeats a request. Address and key are variables where the run does not know them. */
function curlOf(at) {
  const call = at.attempt.calls[at.place], form = at.detail.value(call.asked.form), body = bodyOf(at);
  const base = call.endpoint || page.runs[at.row.run].urls[at.row.variant];
  const key = call.api === "messages" ? '"x-api-key: $API_KEY"' : '"Authorization: Bearer $API_KEY"';
  const headers = Object.entries({ "content-type": "application/json", ...form.headers }).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`);
  const address = base ? quoted(base + form.path) : `"$BASE_URL"${quoted(form.path)}`;
  const lines = [`curl ${address}`, ...headers, `-H ${key}`].join(" \\\n  ");
  const lost = Object.entries(form.parts ?? {}).filter(([, number]) => number === null).map(([name]) => name);
  const note = lost.length ? `# The run did not keep ${lost.map(name => JSON.stringify(name)).join(", ")} of this request.\n` : "";
  if (typeof body === "string") return `${note}${lines} \\\n  --data-raw '${body.replaceAll("'", "'\\''")}'`;
  const text = JSON.stringify(body).replace(HIDDEN, letter => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return `${note}${lines} \\\n  --data-binary @- <<'AGENTBENCH'\n${text}\nAGENTBENCH`;
}

function amountOf(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
