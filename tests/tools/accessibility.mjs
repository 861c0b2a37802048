// Check pages of the built site with axe, in light and dark and on a phone: node accessibility.mjs CHROMIUM SITE
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";

const [chromium, site] = process.argv.slice(2);
const PAGES = [
  "index", "faq", "tutorial", "installation", "how-to/http", "how-to/databases", "reference/policy", "reference/breaker",
  "reference/what-is-retried", "reference/command-line", "explanation/why-jitter", "explanation/comparison",
  "development/faults", "api/redouble.classify", "search",
];
const VIEWS = [["light", 1280], ["dark", 1280], ["light", 390], ["dark", 390]];
const RULES = ["color-contrast", "image-alt", "svg-img-alt", "link-name", "button-name", "label", "document-title",
  "html-has-lang", "link-in-text-block", "duplicate-id-aria", "aria-input-field-name", "frame-title"];

const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox"] });
let failed = 0;
for (const [theme, width] of VIEWS) {
  const tab = await browser.newPage();
  await tab.setViewport({ width, height: 900 });
  await tab.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
  for (const name of PAGES) {
    await tab.goto(pathToFileURL(resolve(site, `${name}.html`)));
    await tab.addScriptTag({ path: axe });
    const found = await tab.evaluate((rules) => axe.run({ runOnly: { type: "rule", values: rules } }), RULES);
    for (const { id, nodes } of found.violations) {
      failed += nodes.length;
      console.log(`${name}, ${theme}, ${width} px: ${id}, ${nodes.length} times: ${nodes[0].html.slice(0, 160)}`);
      console.log(nodes[0].failureSummary.split("\n").slice(1, 2).join(" "));
    }
  }
  await tab.close();
}
await browser.close();
console.log(`${PAGES.length} pages in ${VIEWS.length} views: ${failed} violations`);
process.exit(failed ? 1 : 0);
