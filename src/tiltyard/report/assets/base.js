"use strict";
/* Elements are made with text nodes only: nothing that a model or an environment said is ever read as HTML. */
const tilt = {};

tilt.el = function (tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "onclick" || name === "onchange" || name === "oninput") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
};

tilt.number = function (value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(1);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
};

/* A signed figure of a column: always so many digits, so that they stand below each other. */
tilt.fixed = (value, digits) => (typeof value === "number" && Number.isInteger(value) && Math.abs(value) < 1e6 ? value.toFixed(digits) : tilt.number(value, digits));

tilt.plural = (count, word) => `${count.toLocaleString("en-US")} ${word}${count === 1 ? "" : "s"}`;

tilt.words = (name) => String(name).replaceAll("_", " ");

tilt.color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

tilt.keys = ["a", "b"];

tilt.key = (run) => tilt.el("span", { class: `key key-${tilt.keys[run]}`, "aria-hidden": "true" });

tilt.section = function (id, title, ...children) {
  const heading = tilt.el("h2", { id: `${id}-title` }, title);
  return tilt.el("section", { id, "aria-labelledby": `${id}-title` }, heading, ...children);
};
