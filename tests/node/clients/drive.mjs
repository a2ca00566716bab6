// One client in one process: `node clients/drive.mjs CLIENT CASE ROOT` calls the server at ROOT
// (a base URL without /v1) and prints what its user sees, as JSON. `... CLIENT CASE --script`
// prints the script that the upstream plays.
//
// A file of clients exports `cases`: by name, the upstream's `script` and `run(root)`; `kinds`
// where not every call is one of the main conversation's; `alone` where the two roads differ;
// `ignored` rules for what differs between two equal runs and does not matter; `stopped` what is
// told of a replay that cannot go on, where the replies name what only the recorded world had.

import { stable } from "./stable.mjs";

const [client, name, root] = process.argv.slice(2);
const { cases } = await import(`./${client}.mjs`);
const { script, run } = cases[name];
const result = root === "--script" ? script : stable(await run(root), process.cwd());
process.stdout.write(`${JSON.stringify(result)}\n`);
