// Builds the console into the Python package. The names of the files are fixed, so that a rebuild is a diff of their
// contents, and the hash of the sources is written beside them: tests/console holds the two together.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig } from "vite";

const here = import.meta.dirname;

function sources(folder) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) =>
    entry.isDirectory() ? sources(join(folder, entry.name)) : [join(folder, entry.name)],
  );
}

/** SHA-256 over names and contents of all sources, in the order of their names. */
function sourceHash() {
  const files = [...sources(join(here, "src")), ...["index.html", "package.json", "vite.config.js", "tsconfig.json"].map((name) => join(here, name))];
  const named = files.map((file) => [relative(here, file).replaceAll("\\", "/"), file]).sort(([a], [b]) => (a < b ? -1 : 1));
  const hash = createHash("sha256");
  for (const [name, file] of named) hash.update(name + "\0").update(readFileSync(file)).update("\0");
  return hash.digest("hex");
}

export default defineConfig({
  root: here,
  // The page is /console and its files are /console/...; relative, so that a proxy may put both below a prefix.
  experimental: { renderBuiltUrl: (file, { hostType }) => (hostType === "html" ? "console/" + file : { relative: true }) },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/topics/console",
    emptyOutDir: false,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    rollupOptions: {
      output: { entryFileNames: "app.js", chunkFileNames: "[name].js", assetFileNames: "app[extname]" },
    },
  },
  plugins: [
    {
      name: "source-hash",
      generateBundle() {
        this.emitFile({ type: "asset", fileName: "sources.sha256", source: sourceHash() + "\n" });
      },
    },
  ],
});
