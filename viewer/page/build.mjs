// Builds the page: `node build.mjs FOLDER [--watch]`. The same sources give the same bytes.
import { copyFileSync, mkdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "dist");

/** Returns the rows of the first table of a Markdown page whose header starts with `header`. */
function tableOf(page, header) {
  const text = readFileSync(join(here, "../../docs", page), "utf8");
  const lines = text.slice(text.indexOf(header)).split("\n").slice(2);
  const end = lines.findIndex((line) => !line.startsWith("|"));
  return lines.slice(0, end).map((line) =>
    line
      .split("|")
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );
}

/** Returns what the documentation says about each word of the first column. */
function meanings(page, header) {
  const rows = tableOf(page, header);
  if (rows.length === 0) throw new Error(`docs/${page} has no table \`${header}\``);
  return Object.fromEntries(rows.map((row) => [row[0].replaceAll("`", ""), row[1]]));
}

const preact = readFileSync(join(here, "node_modules/preact/LICENSE"), "utf8").trim();

const options = {
  entryPoints: { app: join(here, "src/main.tsx") },
  outdir: target,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  logLevel: "info",
  banner: { js: `/* rolltape, Apache-2.0. With Preact:\n${preact}\n*/` },
  define: {
    REASONS: JSON.stringify(meanings("export.md", "| reason | meaning |")),
    CAUSES: JSON.stringify(meanings("forks.md", "| cause | meaning |")),
  },
};

mkdirSync(target, { recursive: true });
for (const name of ["index.html", "icon.svg"])
  copyFileSync(join(here, "src", name), join(target, name));
if (process.argv.includes("--watch")) {
  await (await esbuild.context(options)).watch();
} else {
  await esbuild.build(options);
}
