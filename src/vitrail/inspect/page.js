"use strict";
// All data comes from the JSON in this page; names in it are set as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const el = (tag, props = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children);
  return node;
};
const svg = (tag, attributes = {}, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const joined = (text) => text.replaceAll(" %", "\u00a0%"); // no line break before a per cent sign
const percent = (part) => (100 * part).toFixed(part < 0.1 ? 1 : 0) + "\u00a0%";
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// ---- colours: the same scales as the PNG files ----
const VIRIDIS = [[68, 1, 84], [70, 50, 126], [54, 92, 141], [39, 127, 142], [31, 161, 135], [74, 193, 109], [160, 218, 57], [253, 231, 37]];
const HEAT = [[20, 11, 53], [87, 16, 110], [157, 41, 93], [220, 80, 57], [249, 142, 9], [252, 210, 70], [252, 255, 200]];
const CLASSES = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#b8a800", "#808080"];
const tableOf = (stops) => Array.from({ length: 256 }, (_, i) => {
  const at = (i / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2), part = at - low;
  return stops[low].map((c, k) => c * (1 - part) + stops[low + 1][k] * part);
});
const viridis = tableOf(VIRIDIS), heat = tableOf(HEAT);
const cell = (values, at, rows, columns, colour) => {
  const canvas = el("canvas", { width: columns, height: rows });
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const v = values[at + i];
    image.data.set([...colour[v], 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
};

// ---- head of the page ----
$("title").textContent = "Inside " + data.name;
document.title = "Inside " + data.name;
for (const [name, value] of data.facts) $("facts").append(el("div", {}, el("dt", { textContent: name }), el("dd", { textContent: value })));
for (const note of data.notes) $("notes").append(el("li", { textContent: note }));
const themes = ["as the system", "light", "dark"];
$("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf($("theme").textContent.slice(7)) + 1) % 3];
  $("theme").textContent = "Theme: " + next;
  if (next === "as the system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  document.documentElement.style.colorScheme = next === "as the system" ? "" : next;
});
const show = (condition) => document.querySelectorAll(`[data-if="${condition}"]`).forEach((node) => { node.hidden = false; });
document.querySelectorAll("[data-if]").forEach((node) => { node.hidden = true; });

// ---- filters ----
show(data.filters.hybrid ? "hybrid" : "plain");
$("filters-says").textContent = joined(data.filters.says);
$("filters-components").src = data.filters.components;
$("filters-raw").src = data.filters.raw;
(() => {
  const parts = data.filters.explained, width = 360, height = 220, left = 46, bottom = 34;
  const x = (i) => left + ((width - left - 8) * i) / Math.max(1, parts.length), y = (v) => 8 + (height - bottom - 8) * (1 - v);
  const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": data.filters.says });
  for (const v of [0, 0.25, 0.5, 0.75, 1]) figure.append(
    svg("line", { class: "grid", x1: left, x2: width - 8, y1: y(v), y2: y(v) }),
    svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, 100 * v + "%"));
  let sum = 0;
  const points = [[x(0), y(0)], ...parts.map((part, i) => [x(i + 1), y(sum += part)])];
  figure.append(svg("polyline", { class: "curve", points: points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ") }));
  figure.append(svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, `components, 0 to ${parts.length}`));
  $("filters-explained").append(figure);
})();

// ---- positions ----
if (!data.positions.length) $("positions").hidden = true;
else (() => {
  const all = $("positions-all"), one = $("positions-one"), range = $("positions-layer"), gap = 2;
  let table = 0, chosen = 0;
  if (data.positions[0].kind === "relative") show("relative");
  const values = data.positions.map((p) => bytesOf(p.bytes));
  const across = (p) => new Set(p.queries.map((q) => q[1])).size;
  const tile = (p) => {
    const per = across(p), size = clamp(Math.floor(560 / per) - gap, p.grid[1], 96);
    return { per, wide: size, high: Math.round((size * p.grid[0]) / p.grid[1]) };
  };
  const draw = () => {
    const p = data.positions[table], [rows, columns] = p.grid, t = tile(p);
    all.width = t.per * (t.wide + gap) + gap;
    all.height = (p.queries.length / t.per) * (t.high + gap) + gap;
    const brush = all.getContext("2d");
    brush.imageSmoothingEnabled = false;
    p.queries.forEach((_, i) => {
      const left = gap + (i % t.per) * (t.wide + gap), top = gap + Math.floor(i / t.per) * (t.high + gap);
      brush.drawImage(cell(values[table], i * rows * columns, rows, columns, viridis), left, top, t.wide, t.high);
      if (i === chosen) { brush.strokeStyle = "#ff7a1a"; brush.lineWidth = 2; brush.strokeRect(left - 1, top - 1, t.wide + 2, t.high + 2); }
    });
    one.width = 260; one.height = Math.round((260 * rows) / columns);
    const large = one.getContext("2d");
    large.imageSmoothingEnabled = false;
    large.drawImage(cell(values[table], chosen * rows * columns, rows, columns, viridis), 0, 0, one.width, one.height);
    const [row, column] = p.queries[chosen], at = chosen * rows * columns;
    const cosine = (r, c) => (values[table][at + r * columns + c] / 127.5 - 1).toFixed(2);
    const beside = column + 1 < columns ? column + 1 : column - 1, below = row + 1 < rows ? row + 1 : row - 1;
    $("positions-which").textContent = `Patch in row ${row + 1}, column ${column + 1}.` +
      (columns > 1 ? ` Beside it ${cosine(row, beside)}.` : "") + (rows > 1 ? ` ${below > row ? "Below" : "Above"} it ${cosine(below, column)}.` : "");
    $("positions-says").textContent = joined(p.says);
    $("positions-layer-name").textContent = `${p.layer} of ${p.tables}`;
  };
  const choose = (i) => { if (i >= 0 && i < data.positions[table].queries.length && i !== chosen) { chosen = i; draw(); } };
  all.addEventListener("pointermove", (event) => {
    const t = tile(data.positions[table]), scale = all.width / all.clientWidth;
    const column = Math.floor((event.offsetX * scale) / (t.wide + gap)), row = Math.floor((event.offsetY * scale) / (t.high + gap));
    if (column < t.per) choose(row * t.per + column);
  });
  all.addEventListener("keydown", (event) => {
    const per = across(data.positions[table]), step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -per, ArrowDown: per }[event.key];
    if (step) { event.preventDefault(); choose(chosen + step); }
  });
  if (data.positions.length > 1) {
    $("positions-controls").hidden = false;
    range.max = data.positions.length - 1;
    range.addEventListener("input", () => { table = +range.value; draw(); });
  }
  draw();
})();

// ---- attention: one dot a head ----
const chosen = { layer: 0, head: 0, kind: "rollout", picture: 0, patch: [0, 0] }; // head 0 is the mean, 1 … are heads
const listeners = [];
const change = (what) => { Object.assign(chosen, what); listeners.forEach((update) => update()); };
if (!data.attention) $("attention").hidden = true;
else (() => {
  const a = data.attention, heads = a.distance[0].length;
  for (const sentence of a.says) $("attention-says").append(el("p", { className: "says", textContent: joined(sentence) }));
  const units = { distance: "pixels", entropy: "bits", prefix: "per cent" };
  const measured = { distance: "mean attention distance", entropy: "entropy", prefix: "share of tokens that are no patch" };
  if (!a.prefix) $("measure-prefix").hidden = true;
  const measure = () => document.querySelector("[name=measure]:checked").value;
  const draw = () => {
    const kind = measure(), values = a[kind], width = Math.max(640, 60 + 34 * a.layers.length), height = 340, left = 52, bottom = 44;
    const most = Math.max(...values.flat(), ...(kind === "distance" ? a.uniform : [0])) || 1;
    const power = 10 ** Math.floor(Math.log10(most / 5)), step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= most / 5.001);
    const top = step * Math.ceil(most / step - 1e-9), each = (width - left - 10) / a.layers.length;
    const x = (i) => left + (i + 0.5) * each, y = (v) => 12 + (height - bottom - 12) * (1 - v / top);
    const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${measured[kind]} of every head by layer` });
    for (let v = 0; v <= top + 1e-9; v += step) figure.append(
      svg("line", { class: "grid", x1: left, x2: width - 10, y1: y(v), y2: y(v) }),
      svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, String(+v.toPrecision(4))));
    a.layers.forEach((name, i) => {
      figure.append(svg("text", { x: x(i), y: height - bottom + 18, "text-anchor": "middle" }, name.replace(" rows", "r").replace(" columns", "c")));
      if (kind === "distance") figure.append(svg("line", { class: "line", x1: x(i) - each / 2, x2: x(i) + each / 2, y1: y(a.uniform[i]), y2: y(a.uniform[i]) }));
    });
    figure.append(svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, `layer (${kind}, ${units[kind]})`));
    values.forEach((row, i) => row.forEach((value, h) => {
      const off = heads > 1 ? ((h / (heads - 1) - 0.5) * Math.min(each * 0.5, 3 * heads)) : 0;
      const on = chosen.kind === "head" && chosen.layer === i && chosen.head === h + 1;
      const dot = svg("circle", { class: on ? "dot chosen" : "dot", cx: x(i) + off, cy: y(value), r: on ? 7 : 5, "data-layer": i, "data-head": h },
        svg("title", {}, `layer ${a.layers[i]}, head ${h + 1}: ${value.toPrecision(3)} ${units[kind]}`));
      if (data.pictures.length && data.pictures[0].heads) dot.addEventListener("click", () => change({ layer: i, head: h + 1, kind: "head" }));
      figure.append(dot);
    }));
    if (kind === "distance") figure.append(svg("text", { class: "mark", x: width - 12, y: y(a.uniform.at(-1)) - 7, "text-anchor": "end" }, "attention to everything alike"));
    figure.style.maxWidth = width * 1.2 + "px";
    $("attention-chart").replaceChildren(figure);
  };
  const rows = a.layers.map((name, i) => el("tr", {}, el("th", { textContent: name, scope: "row" }), ...a.distance[i].map((v) => el("td", { textContent: v.toFixed(1) }))));
  $("attention-table").append(el("caption", { textContent: "Mean attention distance in pixels" }),
    el("tr", {}, el("th", { textContent: "layer" }), ...a.distance[0].map((_, h) => el("th", { textContent: `head ${h + 1}` }))), ...rows);
  $("attention-controls").addEventListener("change", draw);
  listeners.push(draw);
  draw();
})();

// ---- maps over pictures ----
const mapped = data.pictures.length && data.pictures[0].rollout;
if (!mapped) $("maps").hidden = true;
else (() => {
  const first = data.pictures[0], layers = data.attention.layers, heads = data.attention.distance[0].length;
  const kinds = { rollout: "rollout", gradient: "weighted by gradient", head: "one head", patch: "from a patch" };
  if (!first.gradient) delete kinds.gradient;
  if (!first.from_patch) delete kinds.patch;
  for (const [kind, words] of Object.entries(kinds)) $("maps-kind").append(
    el("label", {}, el("input", { type: "radio", name: "kind", value: kind, checked: kind === "rollout" }), words));
  $("layer").max = layers.length - 1;
  $("head").max = heads;
  $("layer").value = chosen.layer = layers.length - 1;
  const decoded = new Map();
  const decode = (entry) => { if (!decoded.has(entry)) decoded.set(entry, bytesOf(entry.bytes)); return decoded.get(entry); };
  const images = data.pictures.map((picture) => { const image = new Image(); image.src = picture.image; image.onload = () => paint(); return image; });

  // one map as numbers from 0 to 1 of its own peak
  const single = (entry, at) => {
    const bytes = decode(entry), [rows, columns] = entry.grid, size = rows * columns;
    return { rows, columns, values: Float32Array.from(bytes.subarray(at * size, (at + 1) * size), (b) => b / 255), peak: entry.peaks[at] };
  };
  const averaged = (entry, from, count) => {
    const { rows, columns } = single(entry, from), values = new Float32Array(rows * columns);
    for (let i = from; i < from + count; i++) { const m = single(entry, i); m.values.forEach((v, k) => { values[k] += (v * m.peak) / count; }); }
    const peak = Math.max(...values) || 1;
    return { rows, columns, values: values.map((v) => v / peak), peak };
  };
  const current = () => {
    const picture = data.pictures[chosen.picture];
    if (chosen.kind === "rollout" || chosen.kind === "gradient") return single(picture[chosen.kind], 0);
    if (chosen.kind === "head") return chosen.head ? single(picture.heads, chosen.layer * heads + chosen.head - 1) : averaged(picture.heads, chosen.layer * heads, heads);
    const entry = { ...picture.from_patch, grid: picture.grid };
    decoded.set(entry, decode(picture.from_patch));
    const [rows, columns] = picture.grid, of = chosen.patch[0] * columns + chosen.patch[1], patches = rows * columns, kept = picture.from_patch.heads;
    const at = (head) => (chosen.layer * kept + head) * patches + of;
    if (kept === 1) return single(entry, at(0));
    if (chosen.head) return single(entry, at(chosen.head - 1));
    const values = new Float32Array(patches);
    for (let h = 0; h < kept; h++) { const m = single(entry, at(h)); m.values.forEach((v, k) => { values[k] += (v * m.peak) / kept; }); }
    const peak = Math.max(...values) || 1;
    return { rows, columns, values: values.map((v) => v / peak), peak };
  };
  const spread = (map, picture, smooth) => { // the map as a picture of the size of the original, alpha by value
    const small = el("canvas", { width: map.columns, height: map.rows }), image = new ImageData(map.columns, map.rows);
    const strength = $("strength").value / 100;
    map.values.forEach((v, i) => image.data.set([...heat[Math.round(255 * v)], 255 * v * strength], 4 * i));
    small.getContext("2d").putImageData(image, 0, 0);
    return { small, smooth };
  };
  const paint = () => {
    const picture = data.pictures[chosen.picture], canvas = $("map"), map = current(), [top, left, bottom, right] = picture.box;
    [canvas.height, canvas.width] = picture.size;
    canvas.classList.toggle("pick", chosen.kind === "patch");
    const brush = canvas.getContext("2d");
    brush.drawImage(images[chosen.picture], 0, 0, canvas.width, canvas.height);
    brush.fillStyle = "rgba(0,0,0,.7)";
    brush.fillRect(0, 0, canvas.width, top); brush.fillRect(0, bottom, canvas.width, canvas.height - bottom);
    brush.fillRect(0, top, left, bottom - top); brush.fillRect(right, top, canvas.width - right, bottom - top);
    const { small } = spread(map, picture);
    brush.imageSmoothingEnabled = $("smooth").checked;
    brush.imageSmoothingQuality = "high";
    brush.drawImage(small, left, top, right - left, bottom - top);
    if (chosen.kind === "patch") {
      const high = (bottom - top) / map.rows, wide = (right - left) / map.columns;
      brush.strokeStyle = "#fff"; brush.lineWidth = 3;
      brush.strokeRect(left + chosen.patch[1] * wide, top + chosen.patch[0] * high, wide, high);
      brush.strokeStyle = "#000"; brush.lineWidth = 1;
      brush.strokeRect(left + chosen.patch[1] * wide, top + chosen.patch[0] * high, wide, high);
    }
    $("map-says").textContent = sentence(picture, map);
  };
  const sentence = (picture, map) => {
    const is = picture.truth ? ` It is ${picture.truth}.` : "";
    const said = picture.said ? ` The model says ${picture.said.map(([name, p]) => `${name} ${percent(p)}`).join(", ")}.` : "";
    const peak = ` The strongest patch has ${percent(map.peak)}.`;
    const which = { rollout: "Rollout.", gradient: "What speaks for the class that was said.", head: `Layer ${layers[chosen.layer]}, ${chosen.head ? "head " + chosen.head : "mean of the heads"}.`,
      patch: `From the patch in row ${chosen.patch[0] + 1}, column ${chosen.patch[1] + 1}, layer ${layers[chosen.layer]}${chosen.head && picture.from_patch && picture.from_patch.heads > 1 ? ", head " + chosen.head : ", mean of the heads"}.` }[chosen.kind];
    return `${picture.id}: ${which}${chosen.kind === "gradient" ? "" : peak}${is}${said}`;
  };

  const atlas = $("atlas"), gap = 2;
  const side = clamp(Math.floor(500 / Math.max(heads, layers.length)) - gap, 14, 72);
  const drawAtlas = () => {
    const entry = data.pictures[chosen.picture].heads, [rows, columns] = entry.grid, bytes = decode(entry);
    const wide = side, high = Math.max(6, Math.round((side * rows) / columns));
    atlas.width = heads * (wide + gap) + gap; atlas.height = layers.length * (high + gap) + gap;
    const brush = atlas.getContext("2d");
    brush.imageSmoothingEnabled = false;
    for (let l = 0; l < layers.length; l++) for (let h = 0; h < heads; h++) {
      const left = gap + h * (wide + gap), top = gap + l * (high + gap);
      brush.drawImage(cell(bytes, (l * heads + h) * rows * columns, rows, columns, heat), left, top, wide, high);
      if ((chosen.kind === "head" || chosen.kind === "patch") && chosen.layer === l && chosen.head === h + 1) {
        brush.strokeStyle = "#2fa4ff"; brush.lineWidth = 2; brush.strokeRect(left - 1, top - 1, wide + 2, high + 2);
      }
    }
    atlas.cells = { wide, high };
  };
  atlas.addEventListener("click", (event) => {
    const scale = atlas.width / atlas.clientWidth, { wide, high } = atlas.cells;
    change({ kind: "head", head: clamp(Math.floor((event.offsetX * scale) / (wide + gap)), 0, heads - 1) + 1,
      layer: clamp(Math.floor((event.offsetY * scale) / (high + gap)), 0, layers.length - 1) });
  });
  atlas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    change({ kind: "head", layer: clamp(chosen.layer + move[0], 0, layers.length - 1), head: clamp((chosen.head || 1) + move[1], 1, heads) });
  });

  const pick = (row, column) => {
    const [rows, columns] = data.pictures[chosen.picture].grid;
    change({ patch: [clamp(row, 0, rows - 1), clamp(column, 0, columns - 1)] });
  };
  $("map").addEventListener("click", (event) => {
    if (!kinds.patch) return;
    const picture = data.pictures[chosen.picture], [top, left, bottom, right] = picture.box, scale = $("map").width / $("map").clientWidth;
    change({ kind: "patch" });
    pick(Math.floor(((event.offsetY * scale - top) / (bottom - top)) * picture.grid[0]), Math.floor(((event.offsetX * scale - left) / (right - left)) * picture.grid[1]));
  });
  $("map").addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move || chosen.kind !== "patch") return;
    event.preventDefault();
    pick(chosen.patch[0] + move[0], chosen.patch[1] + move[1]);
  });

  data.pictures.forEach((picture, i) => {
    const button = el("button", { type: "button", title: picture.id }, el("img", { src: picture.image, alt: picture.id }));
    button.setAttribute("role", "radio");
    button.addEventListener("click", () => change({ picture: i }));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      change({ picture: (i + step + data.pictures.length) % data.pictures.length });
      $("thumbs").children[chosen.picture].focus();
    });
    $("thumbs").append(button);
  });
  const controls = () => {
    document.querySelectorAll("[name=kind]").forEach((radio) => { radio.checked = radio.value === chosen.kind; });
    const byLayer = chosen.kind === "head" || chosen.kind === "patch", byHead = chosen.kind === "head" || (chosen.kind === "patch" && first.from_patch.heads > 1);
    $("layer").disabled = !byLayer; $("head").disabled = !byHead;
    $("layer-label").classList.toggle("off", !byLayer); $("head-label").classList.toggle("off", !byHead);
    $("layer").value = chosen.layer; $("head").value = chosen.head;
    $("layer-name").textContent = layers[chosen.layer]; $("head-name").textContent = chosen.head && byHead ? chosen.head : "mean";
    [...$("thumbs").children].forEach((button, i) => { button.setAttribute("aria-checked", i === chosen.picture); button.tabIndex = i === chosen.picture ? 0 : -1; });
  };
  $("maps-kind").addEventListener("change", (event) => change({ kind: event.target.value }));
  $("layer").addEventListener("input", () => change({ layer: +$("layer").value }));
  $("head").addEventListener("input", () => change({ head: +$("head").value }));
  $("strength").addEventListener("input", paint);
  $("smooth").addEventListener("change", paint);
  chosen.patch = [Math.floor(first.grid[0] / 2), Math.floor(first.grid[1] / 2)];
  listeners.push(controls, paint, drawAtlas);
  controls(); paint(); drawAtlas();
})();

// ---- features ----
(() => {
  const set = data.set;
  $("method").textContent = !set.flat ? "there are too few images for it." : set.method === "tsne" ? "t-SNE, where close means alike and far means little." : "their first two principal components.";
  for (const picture of data.pictures) $("colours").append(
    el("figure", {}, el("img", { src: picture.image, alt: picture.id }), el("figcaption", { textContent: picture.id })),
    el("figure", {}, el("img", { src: picture.colours, alt: "its tokens as colours" }), el("figcaption", { textContent: picture.truth || "" })));
  const name = (i) => (set.labels ? set.classes[set.labels[i]] : set.ids[i]);
  const portrait = (i, words) => el("figure", {}, el("img", { src: set.thumbs[i], alt: set.ids[i], title: set.ids[i] }), el("figcaption", { textContent: words }));
  if (set.near[0].length) for (const picture of data.pictures) {
    const i = picture.place;
    $("neighbours").append(el("div", { className: "row" }, portrait(i, name(i)), ...set.near[i].map((j, k) => portrait(j, `${set.labels ? name(j) + " " : ""}${set.alike[i][k].toFixed(2)}`))));
  } else $("neighbours").append(el("p", { textContent: "One image has no others beside it." }));
  if (!set.flat) return;
  const width = 900, height = 560, side = set.ids.length > 400 ? 18 : 30;
  const figure = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Map of all images" });
  set.flat.forEach(([x, y], i) => {
    const left = x * (width - side), top = (1 - y) * (height - side);
    const group = svg("g", { class: "thumb", transform: `translate(${left.toFixed(1)} ${top.toFixed(1)})` },
      svg("image", { href: set.thumbs[i], width: side, height: side }),
      svg("rect", { width: side, height: side, stroke: set.labels ? CLASSES[set.labels[i] % CLASSES.length] : "none" }),
      svg("title", {}, `${set.ids[i]}${set.labels ? ": " + name(i) : ""}`));
    group.addEventListener("click", () => {
      figure.append(group);
      $("flat-says").textContent = `${set.ids[i]}${set.labels ? ": " + name(i) : ""}. Nearest: ${set.near[i].slice(0, 3).map((j) => name(j)).join(", ")}.`;
    });
    figure.append(group);
  });
  $("flat").append(figure);
  if (set.labels && set.classes.length <= CLASSES.length) {
    const key = el("div", { className: "controls" });
    set.classes.forEach((label, k) => { const mark = el("span", { textContent: "■" }); mark.style.color = CLASSES[k]; key.append(el("span", {}, mark, " " + label)); });
    $("flat").before(key);
  }
})();

// ---- mistakes ----
if (!data.mistakes) $("mistakes").hidden = true;
else {
  const { wrong, of, worst } = data.mistakes;
  $("mistakes-says").textContent = `${wrong} of ${of} images are named wrongly (${percent(wrong / of)}).` + (wrong ? ` Here are the ${worst.length} most confident.` : "");
  for (const m of worst) {
    const strip = el("div", { className: "strip" }, el("figure", {}, el("img", { src: m.image, alt: m.id }), el("figcaption", { textContent: m.id })));
    if (m.for_said) strip.append(
      el("figure", {}, el("img", { src: m.for_said, alt: "map" }), el("figcaption", { textContent: `speaks for ${m.said}` })),
      el("figure", {}, el("img", { src: m.for_truth, alt: "map" }), el("figcaption", { textContent: `speaks for ${m.truth}` })));
    $("mistakes-list").append(el("div", { className: "card" }, el("p", { textContent: `Said ${m.said} (${percent(m.confidence)}), is ${m.truth}` }), strip));
  }
}

// ---- contents, of what is there ----
document.querySelectorAll("main > section:not([hidden])").forEach((section) => {
  $("contents").append(el("li", {}, el("a", { href: "#" + section.id, textContent: section.querySelector("h2").textContent })));
});
document.body.dataset.ready = "yes";
