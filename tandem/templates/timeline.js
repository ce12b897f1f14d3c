"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const lanes = document.getElementById("lanes");
  const strip = document.getElementById("strip");
  const tip = document.getElementById("tip");
  const GUTTER = 118, RIGHT = 10, NARROWEST = 2e-4;
  const HANDOVER = "Quiescing Releasing Verifying Restoring".split(" ");
  const whole = [0, Math.max(data.end, NARROWEST)];
  let view = whole.slice();
  let width = 0;          // of the canvas, in CSS pixels
  let chosen = -1;        // number of the handover that is shown
  let pointer = null;     // {x, y} over the lanes
  let drag = null;        // {from, x, mode}
  let colour = {};        // custom properties by name

  // Rows from top to bottom, on one time axis.

  const rows = [];
  let height = 0;
  function row(kind, h, gap, about = {}) {
    rows.push({ kind, y: height, h, ...about });
    height += h + gap;
  }
  row("overview", 8 + 5 * data.tenants.length, 4);
  row("axis", 20, 2);
  if (data.conditions.length || data.restarts.length) row("flags", 16, 4);
  if (data.handovers.length) row("handovers", 18, 4);
  data.tenants.forEach((tenant, number) => row("tenant", 36, 5, { tenant, number }));
  if (data.weights.length) row("weights", 24, 8);
  data.devices.forEach((device) => row("device", 132, 18, { device }));
  if (data.progress.some((one) => one[2] !== null)) row("reward", 104, 6);

  // Figures as text.

  const mib = (bytes) => bytes >= 1048576 || bytes === 0 ? (bytes / 1048576).toFixed(1) + " MiB"
    : bytes >= 1024 ? (bytes / 1024).toFixed(1) + " KiB" : bytes + " B";
  const length = (s) => s >= 1 ? s.toPrecision(4) + " s" : s >= 1e-3 ? (s * 1e3).toPrecision(4) + " ms" : (s * 1e6).toFixed(0) + " µs";
  const moment = (s) => s.toFixed(view[1] - view[0] < 2 ? 4 : 3) + " s";

  // Time and place.

  const plot = () => width - GUTTER - RIGHT;
  const toX = (t) => GUTTER + (t - view[0]) / (view[1] - view[0]) * plot();
  const toT = (x) => view[0] + (x - GUTTER) / plot() * (view[1] - view[0]);
  /** The number of the first item whose key is greater than t. */
  function after(items, t, key) {
    let low = 0, high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (key(items[middle]) > t) high = middle; else low = middle + 1;
    }
    return low;
  }
  const first = (item) => item[0];

  function show(from, to) {
    const span = Math.min(Math.max(to - from, NARROWEST), whole[1]);
    const start = Math.min(Math.max((from + to - span) / 2, 0), whole[1] - span);
    view = [start, start + span];
    tip.hidden = true;
    const all = span >= whole[1];
    history.replaceState(null, "", all ? location.pathname + location.search : `#${view[0].toFixed(6)},${view[1].toFixed(6)}`);
    draw();
  }
  function zoom(factor, t) { show(t - (t - view[0]) * factor, t + (view[1] - t) * factor); }
  function move(part) {
    const by = Math.max(-view[0], Math.min(whole[1] - view[1], part * (view[1] - view[0])));
    show(view[0] + by, view[1] + by);
  }
  function choose(number) {
    chosen = Math.max(0, Math.min(data.handovers.length - 1, number));
    const one = data.handovers[chosen];
    if (!one) return;
    for (const line of document.querySelectorAll("#handovers tbody tr")) {
      line.classList.toggle("chosen", Number(line.dataset.handover) === chosen);
    }
    const room = (one.end - one.start) * 0.4;
    show(one.start - room, one.end + room);
    drawStrip();
  }

  // Drawing.

  const pen = lanes.getContext("2d");
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    colour = new Proxy({}, { get: (seen, name) => seen[name] ??= style.getPropertyValue("--" + name).trim() });
    for (const swatch of document.querySelectorAll("i[data-phase]")) {
      const name = swatch.dataset.phase;
      swatch.style.background = name === "Waiting" ? `repeating-linear-gradient(135deg, ${colour.Waiting} 0 2px, ${colour.Parked} 2px 5px)` : colour[name];
    }
  }
  const tenantColour = (number) => colour["tenant" + number % 4];
  function hatch(over, under) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const brush = tile.getContext("2d");
    brush.fillStyle = under;
    brush.fillRect(0, 0, 8, 8);
    brush.strokeStyle = over;
    brush.lineWidth = 2;
    for (const x of [-8, 0, 8]) {
      brush.beginPath();
      brush.moveTo(x, 8);
      brush.lineTo(x + 8, 0);
      brush.stroke();
    }
    return pen.createPattern(tile, "repeat");
  }
  let fills = [];
  function makeFills() {
    fills = data.phases.map((phase) => phase === "Waiting" ? hatch(colour.Waiting, colour.Parked)
      : phase === "Faulted" ? hatch(colour.panel, colour.Faulted) : colour[phase]);
  }
  function fit(canvas, w, h) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(w * scale);
    canvas.height = Math.round(h * scale);
    canvas.style.height = h + "px";
    const brush = canvas.getContext("2d");
    brush.setTransform(scale, 0, 0, scale, 0, 0);
    brush.font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
    brush.textBaseline = "middle";
    return brush;
  }
  function label(text, y, strong, swatch) {
    pen.textAlign = "right";
    pen.fillStyle = strong ? colour.ink : colour.dim;
    if (strong) pen.font = "600 " + pen.font;
    let shown = text;
    while (shown.length > 1 && pen.measureText(shown).width > GUTTER - 18) shown = shown.slice(0, -2) + "…";
    pen.fillText(shown, GUTTER - 12, y);
    if (strong) pen.font = pen.font.replace(/^(600|bold) /, "");
    if (swatch) {
      pen.fillStyle = swatch;
      pen.fillRect(GUTTER - 6, y - 18, 3, 36);
    }
  }
  function line(x0, y0, x1, y1, stroke, dash = []) {
    pen.strokeStyle = stroke;
    pen.lineWidth = 1;
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
    pen.setLineDash([]);
  }

  function draw() {
    if (!width) return;
    fit(lanes, width, height);
    const ticks = niceTicks();
    const bottom = height;
    for (const tick of ticks.at) {
      const x = Math.round(toX(tick)) + 0.5;
      line(x, rows[1].y + rows[1].h, x, bottom, colour.faint);
    }
    drawChosen();
    for (const one of rows) {
      if (one.kind !== "overview" && one.kind !== "axis") {
        pen.save();
        pen.beginPath();
        pen.rect(GUTTER, 0, plot(), height);
        pen.clip();
      }
      painters[one.kind](one, ticks);
      if (one.kind !== "overview" && one.kind !== "axis") pen.restore();
      titles[one.kind]?.(one);
    }
    drawPointer();
  }

  function niceTicks() {
    const span = view[1] - view[0];
    const rough = span / Math.max(2, plot() / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const at = [];
    for (let n = Math.ceil(view[0] / step); n * step <= view[1]; n++) at.push(n * step);
    return { at, digits };
  }

  const painters = {
    overview(one) {
      const x = (t) => GUTTER + t / whole[1] * plot();
      pen.fillStyle = colour.faint;
      pen.fillRect(GUTTER, one.y, plot(), one.h);
      data.tenants.forEach((tenant, number) => {
        let sliver = -1;
        for (const [start, end, phase] of tenant.stays) {
          const name = data.phases[phase];
          if (name === "Parked" || name === "Waiting" || x(end) - sliver < 0.25) continue;
          sliver = x(end);
          pen.fillStyle = colour[name];
          pen.fillRect(x(start), one.y + 4 + 5 * number, Math.max(0.5, x(end) - x(start)), 4);
        }
      });
      pen.fillStyle = colour.panel;
      pen.globalAlpha = 0.72;
      pen.fillRect(GUTTER, one.y, x(view[0]) - GUTTER, one.h);
      pen.fillRect(x(view[1]), one.y, GUTTER + plot() - x(view[1]), one.h);
      pen.globalAlpha = 1;
      pen.strokeStyle = colour.accent;
      pen.lineWidth = 1;
      pen.strokeRect(x(view[0]) + 0.5, one.y + 0.5, Math.max(2, x(view[1]) - x(view[0]) - 1), one.h - 1);
    },
    axis(one, ticks) {
      pen.fillStyle = colour.dim;
      for (const tick of ticks.at) {
        const text = tick.toFixed(ticks.digits) + " s";
        const half = pen.measureText(text).width / 2;
        pen.textAlign = "center";
        pen.fillText(text, Math.max(GUTTER + half, Math.min(width - half, toX(tick))), one.y + one.h / 2);
      }
      pen.textAlign = "right";
      pen.fillText(length(view[1] - view[0]) + " shown", GUTTER - 10, one.y + one.h / 2);
    },
    flags(one) {
      for (const t of data.restarts) {
        if (t < view[0] || t > view[1]) continue;
        line(toX(t), one.y, toX(t), height, colour.dim, [2, 3]);
        pen.fillStyle = colour.dim;
        pen.textAlign = "left";
        pen.fillText("arbiter restarted", toX(t) + 4, one.y + 8);
      }
      for (const [t, condition] of data.conditions) {
        if (t < view[0] || t > view[1]) continue;
        const x = toX(t);
        line(x, one.y, x, height, colour.Faulted, [4, 3]);
        pen.textAlign = "left";
        const w = pen.measureText(condition).width;
        const left = x + w + 14 > GUTTER + plot() ? x - w - 12 : x;
        pen.fillStyle = colour.Faulted;
        pen.fillRect(left, one.y, w + 12, 16);
        pen.fillStyle = colour.panel;
        pen.fillText(condition, left + 6, one.y + 8.5);
      }
    },
    handovers(one) {
      let sliver = -1;
      const from = Math.max(0, after(data.handovers, view[0], (h) => h.start) - 1);
      for (let n = from; n < data.handovers.length && data.handovers[n].start <= view[1]; n++) {
        const h = data.handovers[n];
        const x0 = toX(h.start), w = toX(h.end) - x0;
        if (w < 1 && x0 - sliver < 0.5 && n !== chosen) continue;
        sliver = x0;
        if (w < 46) {
          pen.fillStyle = n === chosen ? colour.accent : colour.dim;
          const middle = x0 + w / 2, half = Math.max(1, w / 2);
          pen.fillRect(middle - half, one.y + 3, 2 * half, 12);
          if (w < 4) continue;
          for (const [phase, , start, end] of h.parts) {
            pen.fillStyle = fills[phase];
            pen.fillRect(toX(start), one.y + 3, toX(end) - toX(start), 12);
          }
          continue;
        }
        line(x0 + 0.5, one.y + 2, x0 + 0.5, one.y + 16, colour.ink);
        line(x0 + w - 0.5, one.y + 2, x0 + w - 0.5, one.y + 16, colour.ink);
        const middle = (Math.max(x0, GUTTER) + Math.min(x0 + w, GUTTER + plot())) / 2;
        const names = `${data.tenants[h.giver].name} → ${data.tenants[h.taker].name}  `;
        const time = length(h.end - h.start);
        const text = pen.measureText(names + time).width < w - 24 ? names + time : time;
        const half = pen.measureText(text).width / 2 + 7;
        line(x0, one.y + 9.5, Math.max(x0, middle - half), one.y + 9.5, colour.ink);
        line(Math.min(x0 + w, middle + half), one.y + 9.5, x0 + w, one.y + 9.5, colour.ink);
        pen.fillStyle = colour.ink;
        pen.textAlign = "center";
        pen.fillText(text, middle, one.y + 9.5);
      }
    },
    tenant(one) {
      const stays = one.tenant.stays;
      let sliver = -1;
      for (let n = Math.max(0, after(stays, view[0], first) - 1); n < stays.length && stays[n][0] <= view[1]; n++) {
        const [start, end, phase, epoch, weights] = stays[n];
        const name = data.phases[phase];
        const x0 = Math.max(toX(start), GUTTER - 2), x1 = Math.min(toX(end), width + 2);
        const aside = name === "Parked" || name === "Waiting";
        if (x1 < GUTTER) continue;
        if (x1 - x0 < 0.5) {
          // Of slivers that fall on the same place one is drawn: a long run stays quick.
          if (x0 - sliver < 0.25) continue;
          sliver = x0;
        }
        pen.fillStyle = fills[phase];
        const inset = aside ? 12 : 0;
        // A handover's phase is at least a pixel wide; the long ones beside it give way.
        pen.fillRect(x0, one.y + inset, Math.max(x1 - x0, HANDOVER.includes(name) ? 1 : 0.5), one.h - 2 * inset);
        if (x1 - x0 > 6 && !aside) {
          pen.fillStyle = colour.panel;
          pen.fillRect(x0, one.y, 1, one.h);
        }
        const left = Math.max(x0, GUTTER) + 7, room = Math.min(x1, GUTTER + plot()) - left - 5;
        if (room < 12) continue;
        const version = weights === null ? "" : " · v" + weights;
        const texts = aside ? [name] : [`${name} · epoch ${epoch}${version}`, name, name === "Running" ? String(epoch) : ""];
        const text = texts.find((candidate) => pen.measureText(candidate).width <= room);
        if (!text) continue;
        pen.textAlign = "left";
        if (name === "Waiting" || name === "Faulted") {
          pen.fillStyle = colour.panel;
          pen.fillRect(left - 4, one.y + inset, pen.measureText(text).width + 8, one.h - 2 * inset);
        }
        pen.fillStyle = aside ? colour.dim : name === "Faulted" ? colour.Faulted : textOn(colour[name]);
        pen.fillText(text, left, one.y + one.h / 2 - (aside || room < 60 ? 0 : 6));
        const time = length(end - start);
        if (!aside && room >= 60 && pen.measureText(time).width <= room) pen.fillText(time, left, one.y + one.h / 2 + 7);
      }
    },
    weights(one) {
      const shown = data.weights.slice(Math.max(0, after(data.weights, view[0], first) - 1), after(data.weights, view[1], first));
      let labelled = -Infinity; // where the last label ends
      pen.textAlign = "center";
      for (const [t, , version] of shown) {
        const x = toX(t), y = one.y + 5;
        pen.fillStyle = colour.Restoring;
        pen.beginPath();
        pen.moveTo(x, y - 4.5);
        pen.lineTo(x + 4, y);
        pen.lineTo(x, y + 4.5);
        pen.lineTo(x - 4, y);
        pen.fill();
        const text = "v" + version, middle = Math.min(x, GUTTER + plot() - 12);
        const half = pen.measureText(text).width / 2 + 3;
        if (middle - half < labelled) continue;
        labelled = middle + half;
        pen.fillStyle = colour.ink;
        pen.fillText(text, middle, y + 13);
      }
    },
    device(one) {
      const { samples, capacity, budget, peak } = one.device;
      const top = Math.max(capacity, peak) * 1.04;
      const y = (bytes) => one.y + one.h * (1 - bytes / top);
      const scale = window.devicePixelRatio || 1;
      const columns = Math.round(plot() * scale);
      pen.fillStyle = colour.faint;
      pen.globalAlpha = 0.5;
      pen.fillRect(GUTTER, y(capacity), plot(), one.h - (y(capacity) - one.y));
      pen.globalAlpha = 1;
      // Each column of pixels shows the sample of its time in which the most was used, so no peak is lost.
      let n = after(samples, view[0], first);
      const strangerFill = hatch(colour.panel, colour.strangers), otherFill = hatch(colour.dim, colour.panel);
      for (let column = 0; column < columns; column++) {
        const until = view[0] + (column + 1) / columns * (view[1] - view[0]);
        let sample = samples[n - 1];
        const seenNoMore = n === samples.length;
        for (; n < samples.length && samples[n][0] <= until; n++) {
          if (!sample || samples[n][1] >= sample[1]) sample = samples[n];
        }
        if (seenNoMore) break;
        if (!sample) continue;
        const x = GUTTER + column / scale;
        const [, used, strangers, ...held] = sample;
        let level = 0;
        const stack = (bytes, fill) => {
          if (bytes <= 0) return;
          pen.fillStyle = fill;
          pen.globalAlpha = 0.85;
          pen.fillRect(x, y(level + bytes), 1 / scale, y(level) - y(level + bytes));
          level += bytes;
        };
        held.forEach((bytes, number) => stack(bytes, tenantColour(number)));
        stack(strangers, strangerFill);
        stack(used - level, otherFill);
      }
      pen.globalAlpha = 1;
      line(GUTTER, y(capacity), width, y(capacity), colour.ink);
      if (budget !== null) {
        line(GUTTER, y(budget), width, y(budget), colour.mark, [5, 4]);
        pen.textAlign = "right";
        const text = "residual budgets " + mib(budget);
        const w = pen.measureText(text).width;
        pen.fillStyle = colour.panel;
        pen.globalAlpha = 0.85;
        pen.fillRect(GUTTER + plot() - w - 10, y(budget) - 16, w + 8, 14);
        pen.globalAlpha = 1;
        pen.fillStyle = colour.ink;
        pen.fillText(text, GUTTER + plot() - 6, y(budget) - 9);
      }
    },
    reward(one) {
      const told = data.progress.filter((progress) => progress[2] !== null);
      const { low, high } = rewardRange(told);
      const y = (reward) => one.y + 8 + (one.h - 16) * (1 - (reward - low) / (high - low || 1));
      line(GUTTER, one.y + one.h + 0.5, width, one.y + one.h + 0.5, colour.line);
      pen.strokeStyle = colour.accent;
      pen.lineWidth = 1.8;
      pen.lineJoin = "round";
      pen.beginPath();
      told.forEach(([t, , reward], n) => n ? pen.lineTo(toX(t), y(reward)) : pen.moveTo(toX(t), y(reward)));
      pen.stroke();
      pen.fillStyle = colour.accent;
      for (const [t, , reward] of told) {
        const x = toX(t);
        if (x < GUTTER - 4 || x > width) continue;
        pen.beginPath();
        pen.arc(x, y(reward), 2.6, 0, 7);
        pen.fill();
      }
    },
  };

  const titles = {
    flags: (one) => label("conditions", one.y + one.h / 2),
    handovers: (one) => label("handovers", one.y + one.h / 2),
    tenant: (one) => label(one.tenant.name, one.y + one.h / 2, true, tenantColour(one.number)),
    weights: (one) => label("weights served", one.y + one.h / 2),
    device(one) {
      const { name, capacity, peak } = one.device;
      const top = Math.max(capacity, peak) * 1.04;
      const y = (bytes) => one.y + one.h * (1 - bytes / top);
      label(mib(capacity), y(capacity));
      label(name, one.y + one.h * 0.36, true);
      label("memory", one.y + one.h * 0.36 + 14);
      label("peak " + mib(peak), one.y + one.h * 0.36 + 28);
      label("0", one.y + one.h - 4);
    },
    reward(one) {
      const { low, high } = rewardRange(data.progress.filter((progress) => progress[2] !== null));
      label(high.toPrecision(3), one.y + 8);
      label("reward", one.y + one.h / 2, true);
      label(low.toPrecision(3), one.y + one.h - 8);
    },
  };

  function rewardRange(told) {
    let low = Infinity, high = -Infinity;
    for (const [, , reward] of told) {
      low = Math.min(low, reward);
      high = Math.max(high, reward);
    }
    return { low, high };
  }
  function textOn(background) {
    const [r, g, b] = background.match(/[0-9a-f]{2}/gi).map((hex) => parseInt(hex, 16) / 255);
    return 0.2126 * r ** 2.2 + 0.7152 * g ** 2.2 + 0.0722 * b ** 2.2 > 0.197 ? "#10151b" : "#ffffff";
  }
  function drawChosen() {
    const one = data.handovers[chosen];
    if (!one || one.end < view[0] || one.start > view[1]) return;
    const x0 = Math.max(GUTTER, toX(one.start)), x1 = Math.min(width - RIGHT, toX(one.end));
    pen.fillStyle = colour.accent;
    pen.globalAlpha = 0.1;
    pen.fillRect(x0, rows[1].y + rows[1].h, Math.max(2, x1 - x0), height);
    pen.globalAlpha = 1;
  }
  function drawPointer() {
    if (drag?.mode === "range") {
      pen.fillStyle = colour.accent;
      pen.globalAlpha = 0.18;
      pen.fillRect(Math.min(drag.from, drag.x), rows[1].y, Math.abs(drag.x - drag.from), height);
      pen.globalAlpha = 1;
    }
    if (!pointer || pointer.x < GUTTER || pointer.x > width - RIGHT) return;
    line(Math.round(pointer.x) + 0.5, rows[1].y + rows[1].h, Math.round(pointer.x) + 0.5, height, colour.dim, [1, 2]);
  }

  // What is under the pointer, in words: [title, [name, value], ...].

  function about(x, y) {
    if (x < GUTTER) return null;
    const t = toT(x);
    const one = rows.find((candidate) => y >= candidate.y - 3 && y < candidate.y + candidate.h + 3);
    const near = (items, key) => items.reduce((best, item) => Math.abs(toX(key(item)) - x) < Math.abs(toX(key(best)) - x) ? item : best);
    switch (one?.kind) {
      case "tenant": {
        const stay = nearestStay(one.tenant.stays, t);
        if (!stay) return null;
        const [start, end, phase, epoch, weights] = stay;
        const lines = [["from", moment(start)], ["for", length(end - start)], ["epoch", epoch]];
        if (weights !== null) lines.push(["weights", "v" + weights]);
        return [`${one.tenant.name}: ${data.phases[phase]}`, ...lines];
      }
      case "handovers": {
        const h = near(data.handovers, (candidate) => (candidate.start + candidate.end) / 2);
        return Math.abs(toX((h.start + h.end) / 2) - x) < 6 || t >= h.start && t <= h.end ? handoverWords(h) : null;
      }
      case "weights": {
        const [at, tenant, version] = near(data.weights, first);
        return Math.abs(toX(at) - x) < 12 ? [`weights v${version}`, ["first served by", data.tenants[tenant].name], ["at", moment(at)]] : null;
      }
      case "flags": {
        if (!data.conditions.length) return null;
        const [at, condition, tenant, device, bytes, message] = near(data.conditions, first);
        if (toX(at) > x + 6 || x - toX(at) > 120) return null;
        const lines = [["at", moment(at)]];
        if (tenant) lines.push(["tenant", tenant]);
        if (device) lines.push(["device", device]);
        if (bytes !== null) lines.push(["bytes", mib(bytes)]);
        return [`${condition}: ${message}`, ...lines];
      }
      case "device": {
        const samples = one.device.samples, sample = samples[after(samples, t, first) - 1];
        if (!sample) return null;
        const [, used, strangers, ...held] = sample;
        const lines = held.map((bytes, number) => [data.tenants[number].name, mib(bytes)]);
        if (strangers) lines.push(["strangers", mib(strangers)]);
        const rest = used - strangers - held.reduce((sum, bytes) => sum + bytes, 0);
        if (rest > 0) lines.push(["of nobody that was seen", mib(rest)]);
        return [`${one.device.name} at ${moment(t)} (simulated)`, ["used", `${mib(used)} of ${mib(one.device.capacity)}`], ...lines];
      }
      case "reward": {
        const [at, iteration, reward, check] = near(data.progress, first);
        const lines = [["reward", reward === null ? "none" : reward.toPrecision(4)]];
        if (check !== null) lines.push(["weights check", check.toPrecision(3)]);
        return [`iteration ${iteration}`, ["at", moment(at)], ...lines];
      }
      default:
        return null;
    }
  }
  /** The stay at t; a shorter one within two pixels is meant rather than the long one beside it. */
  function nearestStay(stays, t) {
    const slack = 2 / plot() * (view[1] - view[0]);
    const from = Math.max(0, after(stays, t - slack, first) - 1), to = after(stays, t + slack, first);
    const candidates = stays.slice(from, to).filter((stay) => stay[1] >= t - slack);
    return candidates.sort((a, b) => a[1] - a[0] - (b[1] - b[0]))[0];
  }
  function handoverWords(h) {
    const parts = h.split.map(([phase, ms]) => [data.phases[phase], ms.toFixed(2) + " ms"]);
    return [
      `${data.tenants[h.giver].name} → ${data.tenants[h.taker].name}: ${length(h.end - h.start)}`,
      ...parts, ["other", h.other.toFixed(2) + " ms"], ["reads of the device", h.reads], ["at", moment(h.start)], ["epoch", h.epoch],
    ];
  }
  function tell(words, event) {
    tip.hidden = !words;
    if (!words) return;
    const [title, ...lines] = words;
    const head = document.createElement("b");
    head.textContent = title;
    tip.replaceChildren(head, ...lines.map((pair) => {
      const box = document.createElement("div");
      for (const text of pair) box.appendChild(document.createElement("span")).textContent = text;
      return box;
    }));
    const { width: w, height: h } = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, event.clientX + 16 + w > innerWidth ? event.clientX - w - 12 : event.clientX + 16) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - h - 6)) + "px";
  }

  // The strip: one bar a handover.

  const STRIP = 168, FOOT = 22, LEFT = 60, END = 36;
  let barWidth = 0;
  const longest = Math.max(...data.handovers.map((h) => h.end - h.start), 1e-6) * 1e3;
  function drawStrip() {
    if (!strip) return;
    const room = strip.parentElement.clientWidth;
    const n = data.handovers.length;
    barWidth = Math.max(3, Math.min(30, (room - LEFT - END) / n));
    // No browser draws a canvas much wider than this.
    const w = Math.min(16000, Math.max(room, LEFT + barWidth * n + END));
    const end = LEFT + barWidth * n;
    strip.style.width = w + "px";
    const brush = fit(strip, w, STRIP);
    const y = (ms) => 8 + (STRIP - FOOT - 8) * (1 - ms / longest);
    const rough = longest / 4, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    for (let ms = 0; ms <= longest; ms += step) {
      brush.fillStyle = colour.line;
      brush.fillRect(LEFT, Math.round(y(ms)), w, 1);
      brush.fillStyle = colour.dim;
      brush.textAlign = "right";
      brush.fillText(Number(ms.toPrecision(6)) + " ms", LEFT - 6, Math.max(8, y(ms)));
    }
    const gap = barWidth > 6 ? 2 : barWidth > 4 ? 1 : 0;
    data.handovers.forEach((h, number) => {
      const x = LEFT + number * barWidth;
      let level = 0;
      for (const [name, ms] of [["other", h.other], ...h.split.map(([phase, part]) => [data.phases[phase], part])]) {
        brush.fillStyle = colour[name];
        brush.fillRect(x, y(level + ms), barWidth - gap, y(level) - y(level + ms));
        level += ms;
      }
      brush.fillStyle = tenantColour(h.taker);
      brush.fillRect(x, STRIP - FOOT + 3, barWidth - gap, 5);
      if (number === chosen) {
        brush.strokeStyle = colour.ink;
        brush.lineWidth = 1.5;
        brush.strokeRect(x - 1, 3, barWidth - gap + 2, STRIP - FOOT + 7);
      }
    });
    const together = y(data.p50) - y(data.p99) < 12;
    for (const [name, ms] of [[together ? "" : "p50", data.p50], ["p99", data.p99]]) {
      brush.strokeStyle = brush.fillStyle = colour.ink;
      brush.setLineDash([4, 3]);
      brush.lineWidth = 1;
      brush.beginPath();
      brush.moveTo(LEFT, y(ms));
      brush.lineTo(end + 4, y(ms));
      brush.stroke();
      brush.setLineDash([]);
      brush.textAlign = "left";
      brush.fillText(name, end + 8, Math.max(7, y(ms)));
    }
    brush.fillStyle = colour.dim;
    brush.textAlign = "center";
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((s) => s * barWidth >= 44) ?? 2000;
    for (let number = every; number <= n; number += every) brush.fillText(number, LEFT + (number - 0.5) * barWidth - gap / 2, STRIP - 6);
  }

  // What the user does.

  const place = (event) => {
    const box = lanes.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  lanes.addEventListener("wheel", (event) => {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!sideways && event.deltaY > 0 && view[1] - view[0] >= whole[1]) return;  // nothing to zoom out of: the page scrolls
    event.preventDefault();
    if (sideways) move((event.deltaX || event.deltaY) / plot());
    else zoom(Math.exp(event.deltaY * 0.002), toT(Math.max(GUTTER, place(event).x)));
  }, { passive: false });
  lanes.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const { x, y } = place(event);
    lanes.setPointerCapture(event.pointerId);
    const onOverview = y < rows[0].y + rows[0].h;
    drag = { from: Math.max(GUTTER, x), x, mode: onOverview ? "overview" : event.shiftKey ? "move" : "range", view: view.slice() };
    if (onOverview) centre(x);
  });
  lanes.addEventListener("pointermove", (event) => {
    pointer = place(event);
    if (drag) {
      drag.x = Math.max(GUTTER, Math.min(width - RIGHT, pointer.x));
      if (drag.mode === "overview") centre(pointer.x);
      if (drag.mode === "move") {
        const by = (drag.from - pointer.x) / plot() * (drag.view[1] - drag.view[0]);
        show(drag.view[0] + by, drag.view[1] + by);
      }
      tip.hidden = true;
    } else tell(about(pointer.x, pointer.y), event);
    soon();
  });
  lanes.addEventListener("pointerup", (event) => {
    const done = drag;
    drag = null;
    if (done?.mode !== "range") return;
    if (Math.abs(done.x - done.from) > 4) return show(toT(Math.min(done.from, done.x)), toT(Math.max(done.from, done.x)));
    const { x, y } = place(event);
    const onHandovers = rows.find((one) => one.kind === "handovers" && y >= one.y && y < one.y + one.h);
    const number = data.handovers.findIndex((h) => Math.abs(toX((h.start + h.end) / 2) - x) < 5 || toX(h.start) <= x && x <= toX(h.end));
    if (onHandovers && number >= 0) choose(number); else soon();
  });
  lanes.addEventListener("pointerleave", () => { pointer = null; tip.hidden = true; soon(); });
  lanes.addEventListener("dblclick", () => show(...whole));
  function centre(x) {
    const t = (x - GUTTER) / plot() * whole[1], half = (view[1] - view[0]) / 2;
    show(t - half, t + half);
  }
  const keys = {
    "+": () => zoom(0.6, (view[0] + view[1]) / 2), "=": () => keys["+"](),
    "-": () => zoom(1 / 0.6, (view[0] + view[1]) / 2),
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
    n: () => choose(chosen + 1), p: () => choose(chosen - 1), 0: () => show(...whole),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.getElementById("whole").onclick = () => show(...whole);
  document.getElementById("next").onclick = keys.n;
  document.getElementById("previous").onclick = keys.p;
  for (const button of document.querySelectorAll("[data-at]")) {
    button.onclick = () => { const t = Number(button.dataset.at); show(t - 0.25, t + 0.25); lanes.scrollIntoView({ block: "center" }); };
  }
  const barAt = (event) => {
    const number = Math.floor((event.clientX - strip.getBoundingClientRect().left - LEFT) / barWidth);
    return number >= 0 && number < data.handovers.length ? number : -1;
  };
  if (strip) {
    strip.addEventListener("pointermove", (event) => {
      const h = data.handovers[barAt(event)];
      tell(h ? handoverWords(h) : null, event);
    });
    strip.addEventListener("pointerleave", () => { tip.hidden = true; });
    strip.addEventListener("click", (event) => { if (barAt(event) >= 0) choose(barAt(event)); });
    const takers = document.getElementById("takers");
    for (const number of new Set(data.handovers.map((h) => h.taker))) {
      const item = takers.appendChild(document.createElement("li"));
      item.appendChild(document.createElement("i")).dataset.tenant = number;
      item.append("to " + data.tenants[number].name);
    }
  }
  const table = document.getElementById("handovers");
  if (table) {
    const body = table.tBodies[0];
    body.addEventListener("click", (event) => pick(event.target.closest("tr")));
    body.addEventListener("keydown", (event) => { if (event.key === "Enter") pick(event.target.closest("tr")); });
    [...table.tHead.rows[0].cells].forEach((head, column) => head.addEventListener("click", () => {
      // Moments, names and epochs begin with the first, lengths with the longest.
      const up = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") === "descending" : column < 5;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (line) => { const text = line.cells[column].textContent; return isNaN(text) ? text : Number(text); };
      const sign = up ? 1 : -1;
      body.append(...[...body.rows].sort((a, b) => value(a) > value(b) ? sign : value(a) < value(b) ? -sign : 0));
    }));
  }
  function pick(line) {
    if (line) choose(Number(line.dataset.handover));
  }

  // Start, and again when the window or the theme changes.

  let asked = false;
  function soon() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  }
  function restyle() {
    readColours();
    makeFills();
    for (const swatch of document.querySelectorAll("i[data-tenant]")) swatch.style.background = tenantColour(Number(swatch.dataset.tenant));
    draw();
    drawStrip();
  }
  const hash = location.hash.slice(1).split(",").map(Number);
  if (hash.length === 2 && hash[0] < hash[1]) view = hash;
  new ResizeObserver(() => {
    if (width === lanes.clientWidth) return;
    width = lanes.clientWidth;
    restyle();
  }).observe(lanes);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
})();
