// Puts the page together, and follows the part of its address behind #.

/** Opens what the address names: a rollout, or a part of the page. */
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

/** Keys of the rollout that is open: j and k walk as the arrows do. */
function dialogKeys(event) {
  if (!dialog.open || event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { j: 1, k: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  walk(step);
}

/** Draws a section when it is first seen, or printed; `page.drawn` knows which are. */
function whenSeen(id, build) {
  const section = document.getElementById(id);
  const once = () => { if (!page.drawn.has(id)) { page.drawn.add(id); build(); } };
  new IntersectionObserver((entries, observer) => {
    if (entries.some(entry => entry.isIntersecting)) { observer.disconnect(); once(); }
  }, { rootMargin: "400px" }).observe(section);
  window.addEventListener("beforeprint", once);
}

/** Draws the comparison; hides it where there is none. */
function showCompare() {
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
