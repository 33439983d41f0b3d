// Gives every text whose contrast to its ground is below 4.5.
const rgb = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (node) => { for (; node; node = node.parentElement) { const c = rgb(getComputedStyle(node).backgroundColor);
  if (c.length === 3 || c[3] > 0.9) return c; } return [255, 255, 255]; };
const weak = [];
for (const node of document.querySelectorAll('body *')) {
  if (![...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim())) continue;
  const box = node.getBoundingClientRect(), style = getComputedStyle(node);
  if (!box.width || !box.height || style.visibility === 'hidden' || node.closest('.off, :disabled, .hidden, script, style, canvas')) continue;
  const [a, b] = [light(rgb(style.color)), light(ground(node))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) weak.push(`${node.className} ${node.textContent.slice(0, 30)} ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
}
return weak;
