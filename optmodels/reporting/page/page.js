(() => {
  "use strict";
  const store = JSON.parse(document.getElementById("charts").textContent);
  const narrow = window.matchMedia("(max-width: 600px)").matches;
  if (narrow) {
    store.config.axis.labelLimit = 105;
    store.config.axis.labelFontSize = 10;
    store.config.axis.labelOverlap = true;
    store.config.legend.layout = { bottom: { direction: "vertical" } }; // several below each other
  }
  // Names that are too long for their axis on two lines, broken where words end: cut off they would look alike.
  const LINES = "split(replace(datum.label, regexp('^(?=.{17})(.{1,17}[ /_])(.+)$'), '$1\\n$2'), '\\n')";
  const fit = (node) => {
    if (node === null || typeof node !== "object") return;
    const y = node.encoding && node.encoding.y;
    if (y && y.type === "nominal" && y.axis !== null && !(y.axis && y.axis.labelExpr)) {
      y.axis = { ...y.axis, labelExpr: LINES, labelLineHeight: 11 };
    }
    if (node.projection && node.height) node.height = Math.round(window.innerWidth / 2); // a map is twice as wide as high
    if (node.facet && node.columns) node.columns = 1;
    for (const [key, child] of Object.entries(node)) if (key !== "data") fit(child);
  };
  const refuse = () => Promise.reject(new Error("this page loads nothing"));
  const options = {
    ast: true, // expressions are interpreted: no eval, so the content security policy needs no exception
    actions: false,
    renderer: "svg",
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true, maxDepth: 1 },
    loader: { load: refuse, sanitize: refuse, http: refuse, file: refuse },
    config: store.config,
  };

  // The charting library lies in the page compressed; the content security policy knows it by its hash.
  async function unpack() {
    if (!window.DecompressionStream) throw new Error("this browser is from before 2023");
    const packed = atob(document.getElementById("vega").textContent);
    const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  const save = (href, name) => {
    const link = document.createElement("a");
    link.href = href;
    link.download = name;
    link.click();
  };

  // The longest name in a legend of the chart: as many columns as have room.
  const longest = (node) => {
    if (node === null || typeof node !== "object") return 0;
    const domain = node.scale && Array.isArray(node.scale.domain) ? node.scale.domain : [];
    return Math.max(0, ...domain.map((d) => String(d).length), ...Object.values(node).map(longest));
  };

  async function draw(place) {
    const spec = store.specs[Number(place.dataset.chart)];
    if (narrow) fit(spec);
    if (narrow && spec.hconcat) {
      spec.vconcat = spec.hconcat; // side by side they would be too small to read
      delete spec.hconcat;
    }
    const room = Math.min(place.clientWidth, 650) / (7 * longest({ ...spec, data: null }) + 44); // paper is 650 wide
    store.config.legend.columns = Math.max(1, Math.min(4, Math.floor(room)));
    const { view } = await window.vegaEmbed(place, spec, options);
    const svg = place.querySelector("svg");
    if (svg) svg.setAttribute("aria-hidden", "true"); // the figure's label and caption speak for it
    for (const button of place.parentElement.querySelectorAll("button[data-save]")) {
      button.hidden = false;
      button.addEventListener("click", async () => {
        const kind = button.dataset.save;
        save(await view.toImageURL(kind, kind === "png" ? 2 : 1), `${place.dataset.name}.${kind}`);
      });
    }
  }

  // The page is painted first; then what is looked at, or nearly, is drawn before the rest, which printing needs too.
  async function drawAll() {
    const places = [...document.querySelectorAll("[data-chart]")];
    const waiting = new Set(places);
    const near = new Set();
    const watch = new IntersectionObserver(
      (entries) => entries.forEach((e) => (e.isIntersecting ? near.add(e.target) : near.delete(e.target))),
      { rootMargin: "200px" },
    );
    places.forEach((place) => watch.observe(place));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const library = places.length ? unpack() : undefined;
    while (waiting.size) {
      const place = [...waiting].find((p) => near.has(p)) ?? [...waiting][0];
      waiting.delete(place);
      try {
        await library;
        await draw(place);
      } catch (error) {
        place.textContent = `This chart could not be drawn: ${error.message}`;
      }
      await new Promise((done) => setTimeout(done)); // clicks and scrolling come first
    }
    watch.disconnect();
    document.documentElement.dataset.drawn = String(places.length);
  }

  const value = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = Number.parseFloat(text.replace(/,/g, ""));
    return Number.isNaN(number) ? text : number;
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

  for (const table of narrow ? document.querySelectorAll("table:has(thead th:nth-child(4))") : []) {
    const [names, rows] = [[...table.tHead.rows[0].cells].map((head) => head.textContent), table.tBodies[0].rows];
    if (rows.length > 12) continue; // many rows are looked up: they stay beside each other, and scroll
    for (const row of rows) [...row.cells].forEach((cell, i) => (cell.dataset.column = names[i]));
    table.classList.add("cards");
  }
  for (const cell of narrow ? document.querySelectorAll("table.sortable td:first-child") : []) {
    if (cell.children.length || !cell.textContent) continue;
    const parts = cell.textContent.split(/(?<=[_/])/); // names break here before they break anywhere
    cell.replaceChildren(...parts.flatMap((part) => [part, document.createElement("wbr")]));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows];
        rows.forEach((row, i) => { // a name that stands for several rows goes with each
          if (i && !row.cells[0].textContent) row.cells[0].textContent = rows[i - 1].cells[0].textContent;
        });
        rows.sort((a, b) => (up ? 1 : -1) * order(value(a, column), value(b, column)));
        table.tBodies[0].append(...rows);
      });
    });
  }

  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        const range = document.createRange(); // pages opened from disk may not have the clipboard
        range.selectNodeContents(text);
        const selection = window.getSelection();
        selection.removeAllRanges();
        selection.addRange(range);
        button.textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl+C";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }

  const opened = [];
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details.print:not([open])")) {
      details.open = true;
      opened.push(details);
    }
  });
  window.addEventListener("afterprint", () => {
    while (opened.length) opened.pop().open = false;
  });

  drawAll();
})();
