// Messages in the form of Chat Completions, and texts to copy.

/** Returns an element that the user can open. Its content is built when it is opened for the first time. */
function fold(title, build, attributes = {}) {
  const holder = el("details", attributes, el("summary", {}, title));
  holder.addEventListener("toggle", () => { if (holder.open && holder.children.length === 1) furnish(holder, {}, [build()]); });
  return holder;
}

/** Returns the messages that an agent recorded. */
function transcript(detail) {
  const messages = detail.messages.map(detail.value);
  const last = messages.at(-1);
  const answered = last && last.role === "assistant" && last.content === detail.answer;
  return el("ol", { class: "transcript" }, messages.map(each => message(each, namesOf(messages))),
    detail.answer && !answered ? message({ role: "answer", content: detail.answer }) : null,
    messages.length || detail.answer ? null : el("li", { class: "soft" }, "No messages: the agent said nothing, or recorded no transcript."));
}

/** Returns id of a tool call -> name of the tool, for the results in later messages. */
function namesOf(messages) {
  const calls = messages.flatMap(each => (each && Array.isArray(each.tool_calls) ? each.tool_calls : []));
  return new Map(calls.filter(call => call && call.id).map(call => [call.id, call.function?.name ?? call.name]));
}

/** Shows a message. System prompts and reasoning are folded. `mark` is a word beside the role, such as "new". */
function message(each, names = new Map(), mark = "") {
  if (typeof each !== "object" || each === null) each = { role: "prompt", content: each };
  const role = String(each.role ?? each.type ?? "message");
  const text = each.content === undefined && !each.tool_calls && !reasoningOf(each) ? json(each) : contentText(each.content ?? "");
  const name = each.name ?? names.get(each.tool_call_id);
  const title = [role, name ? [" ", el("code", {}, name)] : null, mark ? el("span", { class: "mark" }, mark) : null];
  const reasoning = reasoningOf(each);
  const calls = Array.isArray(each.tool_calls) ? each.tool_calls.map(callItem) : [];
  const said = text === "" ? null : long(text);
  const body = ["system", "developer"].includes(role) ? el("details", {}, el("summary", {}, title), said)
    : [el("h4", {}, title), reasoning ? fold("reasoning", () => long(reasoning), { class: "reasoning" }) : null, said];
  return el("li", { class: `${["user", "assistant", "tool", "system"].includes(role) ? role : "other"}${mark ? " new" : ""}` }, body, calls);
}

/** Returns the reasoning of a message: servers write it to one of two fields. */
function reasoningOf(each) {
  const found = each.reasoning_content ?? each.reasoning;
  return found ? contentText(found) : "";
}

/** Returns the content of a message. Parts other than text are shown as JSON, so that nothing is loaded. */
function contentText(content) {
  if (!Array.isArray(content)) return json(content);
  return content.map(part => (part && typeof part.text === "string" ? part.text : json(part))).join("\n");
}

function callItem(call) {
  const named = (call && call.function) || call || {};
  return el("div", { class: "call" }, el("code", {}, String(named.name ?? "tool")), long(pretty(named.arguments)));
}

/** Formats arguments with spaces if they are valid JSON, otherwise returns them unchanged. */
function pretty(text) {
  try { return json(JSON.parse(text)); } catch { return json(text ?? ""); }
}

/** Shows a text with a button that copies it. */
function copyable(text) {
  const button = el("button", { type: "button", class: "more" }, "copy");
  button.addEventListener("click", async () => { button.textContent = await copied(text) ? "copied" : "the browser does not allow copying"; });
  return el("div", { class: "raw" }, button, long(text));
}

/** Copies a text, and returns whether that is possible. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Quotes a text for a POSIX shell, if it needs quotes. */
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`;
}
