// The page's chart library from entry.js, in one file without names of its own but `echarts`.
import { readFileSync } from "node:fs";
import { build } from "esbuild";

const version = JSON.parse(readFileSync("node_modules/echarts/package.json", "utf8")).version;
const banner = `/*!
Apache ECharts ${version}, Copyright 2017-2026 The Apache Software Foundation, Apache License 2.0 (LICENSE, NOTICE),
with zrender (LICENSE-zrender), tslib, and parts of d3 (LICENSE-d3).
Changed for taftcache: cut to the charts that its page draws, by tools/charts.
*/`;
await build({
  entryPoints: ["entry.js"],
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "echarts",
  target: "es2020",
  legalComments: "none",
  banner: { js: banner },
  outfile: "../../taftcache/view/assets/echarts/echarts.min.js",
});
