// Fills the menu of versions from versions.json beside the folder of this version, which `.ci/site` writes.
// A site that was built alone, or opened from a disk, has no such file and shows no menu.
document.addEventListener("DOMContentLoaded", async () => {
  const menu = document.querySelector(".versions");
  const root = new URL(document.documentElement.dataset.content_root || "./", location.href);
  if (!menu || !location.protocol.startsWith("http")) return;
  const answer = await fetch(new URL("../versions.json", root));
  if (!answer.ok) return;
  const current = root.pathname.split("/").at(-2);
  for (const version of await answer.json()) menu.add(new Option(version, version, false, version === current));
  menu.hidden = false;
  menu.addEventListener("change", () => location.assign(new URL(`../${menu.value}/`, root)));
});
