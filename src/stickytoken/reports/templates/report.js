"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 640px)");
  const plots = [...document.querySelectorAll("[data-figure]")];
  const options = {
    responsive: true, displayModeBar: false, scrollZoom: false,
  };
  let printing = false;
  const clone = (value) => JSON.parse(JSON.stringify(value));

  // Sets layout["a.b[0].c"], as Plotly.relayout would.
  function put(layout, path, value) {
    const keys = path.replace(/\[(\d+)\]/g, ".$1").split(".");
    const last = keys.pop();
    let place = layout;
    for (const key of keys) place = place[key] ??= {};
    place[last] = value;
  }

  function layoutOf(figure, print) {
    const layout = clone(figure.layout);
    layout.template = report.themes[dark.matches && !print ? "dark" : "light"];
    if (narrow.matches && !print) {
      for (const [path, value] of Object.entries(figure.narrow)) put(layout, path, value);
      layout.font = { size: 11 };
    }
    if (print) {
      // At this size, two figures fit on a printed page.
      layout.width = 680;
      layout.height = layout.height > 480 ? layout.height * 0.85 : Math.min(layout.height, 330);
      layout.autosize = false;
      // Keep the distance between legend and axis the same at the new height.
      if (layout.legend?.y < 0) layout.legend.y = -70 / (layout.height - 110);
    }
    return layout;
  }

  function draw(print) {
    for (const plot of plots) {
      if (plot.closest("details:not([open])")) continue; // drawn when it is opened
      const figure = report.figures[plot.dataset.figure];
      const layout = layoutOf(figure, print);
      plot.querySelector(".waiting")?.remove();
      plot.style.height = `${layout.height}px`;
      Plotly.react(plot, clone(figure.data), layout, options);
    }
  }

  // The page contains Plotly in compressed form, and its Content-Security-Policy allows exactly this script.
  async function unpack() {
    const packed = document.getElementById("plotly-gz");
    const bytes = Uint8Array.from(atob(packed.textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    packed.remove();
  }

  // On a phone, only the first step is shown, to leave room for the result.
  function fold() {
    for (const details of document.querySelectorAll("details.others")) details.open = !narrow.matches;
  }
  fold();
  narrow.addEventListener("change", fold);

  async function start() {
    if (!plots.length) return;
    if (typeof DecompressionStream === "undefined") {
      for (const plot of plots) {
        plot.textContent = "This browser is too old to draw this figure. The table below shows its numbers.";
      }
      return;
    }
    await unpack();
    for (const details of document.querySelectorAll("details.numbers")) details.open = false;
    draw(false);
    dark.addEventListener("change", () => draw(false));
    narrow.addEventListener("change", () => draw(false));
    for (const part of document.querySelectorAll("details.part")) {
      part.addEventListener("toggle", () => printing || draw(false));
    }
    // Nothing can be opened on paper, so all closed parts are opened for printing.
    let opened = [];
    addEventListener("beforeprint", () => {
      printing = true;
      const closed = ["part", "numbers", "others"].map((name) => `details.${name}:not([open])`);
      opened = [...document.querySelectorAll(closed)];
      for (const details of opened) details.open = true;
      draw(true);
    });
    addEventListener("afterprint", () => {
      for (const details of opened) details.open = false;
      draw(false);
      printing = false;
    });
  }

  function table() {
    const tokens = document.getElementById("tokens");
    if (!tokens) return;
    const body = tokens.tBodies[0];
    const rows = [...body.rows];
    const heads = [...tokens.tHead.rows[0].cells];
    const order = document.getElementById("order");
    const search = document.getElementById("search");
    const count = document.getElementById("count");
    const text = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
    const numeric = heads.map((_, k) => rows.some((row) => row.cells[k].classList.contains("number")));

    function sort(column, down) {
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const compare = numeric[column]
        ? (a, b) => Number(value(a)) - Number(value(b))
        : (a, b) => value(a).localeCompare(value(b));
      const sorted = [...rows].sort((a, b) => {
        const missing = (value(a) === "") - (value(b) === "");
        return missing || (down ? -compare(a, b) : compare(a, b));
      });
      body.append(...sorted);
      heads.forEach((head, k) => head.removeAttribute("aria-sort"));
      heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
      order.value = String(column);
    }

    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        sort(column, now ? now === "ascending" : numeric[column]);
      });
      head.replaceChildren(button);
    });
    order.addEventListener("change", () => {
      if (order.value !== "") {
        sort(Number(order.value), numeric[Number(order.value)]);
        return;
      }
      body.append(...rows);
      heads.forEach((head) => head.removeAttribute("aria-sort"));
    });
    search.addEventListener("input", () => {
      const wanted = search.value.trim().toLowerCase();
      let shown = 0;
      rows.forEach((row, k) => {
        row.hidden = !text[k].includes(wanted);
        shown += !row.hidden;
      });
      count.textContent = `${shown} of ${rows.length}`;
    });
    search.form.addEventListener("submit", (event) => event.preventDefault());
    search.form.hidden = false;
  }

  // A link in the table of contents opens the part that it leads to.
  function reveal() {
    const part = document.getElementById(location.hash.slice(1))?.closest("details.part");
    if (!part || part.open) return;
    part.open = true;
    part.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  reveal();

  table();
  start();
})();
