/* What the page shows is packed in blocks of its own, and unpacked when it is asked for. */
tilt.unpacked = new Map();

tilt.unpack = function (id) {
  if (!tilt.unpacked.has(id)) tilt.unpacked.set(id, tilt.read(id));
  return tilt.unpacked.get(id);
};

tilt.read = async function (id) {
  const block = document.getElementById(id);
  if (!block) throw new Error(`the report has no block ${id}`);
  const text = atob(block.textContent);
  const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

tilt.pagesTogether = 50;

tilt.page = async function (run, number) {
  const pages = await tilt.unpack(`pages-${run}-${Math.floor(number / tilt.pagesTogether)}`);
  return pages[number % tilt.pagesTogether];
};

/* Columns become rows; `run` and `index` say which episode it is. */
tilt.rows = async function (run) {
  const columns = await tilt.unpack(`rows-${run}`);
  const names = Object.keys(columns);
  const count = names.length ? columns[names[0]].length : 0;
  const rows = [];
  for (let index = 0; index < count; index++) {
    const row = { run, index };
    for (const name of names) row[name] = columns[name][index];
    rows.push(row);
  }
  return rows;
};

tilt.parsed = new Promise((resolve) => {
  if (document.readyState !== "loading") resolve();
  else document.addEventListener("DOMContentLoaded", () => resolve());
});
