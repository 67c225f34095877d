// Builds the page, and follows the part of its address after #.

/** Opens the rollout or the part of the page that the address names. */
function follow() {
  const link = location.hash.slice(1);
  const row = rowAt(link);
  if (!row) {
    if (dialog.open) dialog.close();
    return;
  }
  showRollout(row);
  const place = table.shown.findIndex(each => each.rows.includes(row));
  if (place >= 0) reveal(place);
}

/** Handles the keys of an open rollout. j and k work like the arrow buttons. */
function dialogKeys(event) {
  if (!dialog.open || event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { j: 1, k: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  walk(step);
}

/** Draws a section when it first becomes visible or is printed. `page.drawn` has the drawn ones. */
function whenSeen(id, build) {
  const section = document.getElementById(id);
  const once = () => { if (!page.drawn.has(id)) { page.drawn.add(id); build(); } };
  new IntersectionObserver((entries, observer) => {
    if (entries.some(entry => entry.isIntersecting)) { observer.disconnect(); once(); }
  }, { rootMargin: "400px" }).observe(section);
  window.addEventListener("beforeprint", once);
}

/** Draws the comparison, or hides it if there is none. */
function showCompare() {
  const rules = buildRules();
  document.getElementById("rules").hidden = !rules;
  document.querySelector('nav a[href="#rules"]').hidden = !rules;
  const compares = buildCompare();
  document.getElementById("compare").hidden = !compares;
  document.querySelector('nav a[href="#compare"]').hidden = !compares;
}

function begin() {
  takeIndex(JSON.parse(document.getElementById("index").textContent));
  document.querySelector("nav").hidden = false;
  document.getElementById("scenarios").hidden = false;
  showCompare();
  buildTable();
  document.getElementById("scenarios").append(containedNote() ?? "");
  document.getElementById("speed").hidden = false;
  whenSeen("speed", buildSpeed);
  dialog.addEventListener("close", () => {
    if (rowAt(location.hash.slice(1))) history.replaceState(null, "", "#scenarios");
    if (!document.activeElement.closest("#first")) focusRow(table.shown.findIndex(each => each.rows.includes(open.row)));
  });
  document.addEventListener("keydown", dialogKeys);
  window.addEventListener("hashchange", follow);
  follow();
  if (page.live) watch();
  document.documentElement.dataset.ready = "yes";
}

begin();
