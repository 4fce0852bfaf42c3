// SPDX-License-Identifier: Apache-2.0

// This script shows the data of all agents, and refreshes the data every two seconds. Names come
// from tenants, so the script sets text and never HTML.
'use strict';

const pause = 2000; // milliseconds between an answer and the next query
const whole = 1e6; // parts per million of a GPU's time
const order = {key: 'name', down: false};
let rows = [];

function element(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

// mib returns a number of MiB, rounded up as kubectl vgpu does, and "-" if the driver reports no value.
function mib(bytes) {
  return bytes === undefined || bytes === null ? '-' : Math.ceil(bytes / 2 ** 20);
}

// gib returns the text of a sum, which may be large.
function gib(bytes) {
  return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

// tenths returns a percentage with the digits of kubectl vgpu.
function tenths(percent) {
  return percent === undefined || percent === null ? '-' : percent.toFixed(1);
}

// bar draws the used and the allocated part of a whole. used is undefined if the driver reports no value.
function bar(label, used, allocated, total) {
  const part = (value) => `${Math.min(100, 100 * value / total)}%`;
  const b = element('div', 'bar');
  b.setAttribute('role', 'img');
  b.setAttribute('aria-label', label);
  for (const [name, value] of [['allocated', allocated], ['used', used]]) {
    if (!value || !total) continue;
    const i = element('i', name);
    i.style.width = part(value);
    b.append(i);
  }
  return b;
}

// account returns the figures of a GPU.
function account(gpu) {
  const room = gpu.room;
  return {
    total: gpu.memoryBytes,
    used: gpu.memoryUsedBytes,
    allocated: room ? room.memoryBytes - room.freeMemoryBytes : 0,
    busy: gpu.utilisation,
    share: room ? 100 * (whole - room.freeComputePPM) / whole : 0,
  };
}

function card(title, big, ...rest) {
  return element('div', 'card', element('h3', '', title), element('div', 'big', big), ...rest);
}

function drawSums(fleet) {
  const gpus = fleet.overviews.flatMap((o) => o.gpus);
  const sum = {total: 0, used: 0, allocated: 0, busy: 0, share: 0};
  for (const gpu of gpus) {
    for (const [key, value] of Object.entries(account(gpu))) sum[key] += value ?? 0;
  }
  const idle = rows.reduce((n, r) => n + (r.idle ?? 0), 0);
  const sick = gpus.filter((g) => g.unhealthy).length;
  const memoryText = `${gib(sum.used)} used, ${gib(sum.allocated)} allocated, ${gib(sum.total)} in total`;
  const busy = `${tenths(sum.busy / (gpus.length || 1))} %`;
  const timeText = `${busy} used, ${tenths(sum.share / (gpus.length || 1))} % allocated`;
  const cards = [
    card('GPUs', `${gpus.length}`, element('div', 'faint', `on ${fleet.overviews.length} ${fleet.overviews.length === 1 ? 'node' : 'nodes'}`),
      element('div', sick ? 'bad' : 'faint', sick ? `${sick} unhealthy` : 'all healthy')),
    card('Memory', gib(sum.used), bar(memoryText, sum.used, sum.allocated, sum.total), element('div', 'faint', memoryText)),
    card('GPU time', busy, bar(timeText, sum.busy, sum.share, 100 * gpus.length), element('div', 'faint', timeText)),
    card('Idle memory', gib(idle), element('div', 'faint', 'unused part of the limits')),
  ];
  cards.forEach((c, i) => { c.dataset.sum = ['gpus', 'memory', 'time', 'idle'][i]; });
  document.getElementById('sums').replaceChildren(...cards);
}

// number returns a GPU's number: "0", and "0:1" for the MIG device 1 of GPU 0.
function number(gpu) {
  return gpu.mig ? `${gpu.index}:${gpu.mig.index}` : `${gpu.index}`;
}

function drawGPU(gpu) {
  const a = account(gpu);
  const memoryText = `Memory: ${mib(a.used)} MiB used, ${mib(a.allocated)} MiB allocated, ${mib(a.total)} MiB in total`;
  const timeText = `Time: ${tenths(a.busy)} % used, ${a.share} % allocated`;
  const e = element('div', 'gpu',
    element('p', '', `${number(gpu)} · ${gpu.name ?? ''}`), element('p', 'faint', gpu.uuid),
    element('p', 'faint', memoryText), bar(memoryText, a.used, a.allocated, a.total),
    element('p', 'faint', timeText), bar(timeText, a.busy, a.share, 100));
  if (gpu.unhealthy) e.append(element('p', 'bad', `unhealthy: ${gpu.unhealthy}`));
  e.dataset.gpu = gpu.uuid;
  e.dataset.used = a.used ?? '';
  e.dataset.allocated = a.allocated;
  return e;
}

function drawNodes(fleet) {
  const nodes = fleet.overviews.map((o) => {
    const title = element('h3', '', o.node);
    const c = element('div', 'card', title, element('div', 'faint', `version ${o.version}${o.pool ? `, pool ${o.pool}` : ''}`));
    if (o.driver) c.append(element('p', 'bad', `driver: ${o.driver}`));
    c.append(...o.gpus.map(drawGPU));
    return c;
  });
  document.getElementById('nodes').replaceChildren(...nodes);
}

function readRows(fleet) {
  return fleet.overviews.flatMap((o) => (o.containers ?? []).flatMap((c) => c.gpus.map((s) => ({
    id: `${c.namespace}/${c.pod}/${c.container}`,
    name: `${c.namespace}/${c.pod}/${c.container}`,
    place: `${o.node} GPU ${number(s)}`,
    uuid: s.uuid,
    memory: s.memoryUsedBytes,
    limit: s.memoryLimitBytes,
    idle: s.memoryUsedBytes === undefined ? undefined : Math.max(0, s.memoryLimitBytes - s.memoryUsedBytes),
    time: s.utilisation,
    timeLimit: s.computeLimitPPM ? [s.computeLimitPPM, s.computeMaximumPPM].filter(Boolean).map((ppm) => 100 * ppm / whole).join('-') : '',
    throttled: s.account?.throttledSeconds,
    refusals: s.account?.refusals,
  }))));
}

function drawRow(r) {
  const cells = [
    ['Container', r.name],
    ['GPU', r.place],
    ['Memory used', `${mib(r.memory)}/${mib(r.limit)} MiB`],
    ['Memory idle', r.idle === undefined ? '-' : `${Math.max(0, mib(r.limit) - mib(r.memory))} MiB`],
    ['GPU time', `${tenths(r.time)}${r.timeLimit && '/'}${r.timeLimit} %`],
    ['Throttled', r.throttled === undefined ? '' : `${r.throttled.toFixed(1)} s`],
    ['Refusals', r.refusals === undefined ? '' : `${r.refusals}`],
  ];
  const row = element('tr', '', ...cells.map(([label, text]) => {
    const td = element('td', '', text);
    td.dataset.label = label;
    return td;
  }));
  row.dataset.container = r.id;
  row.dataset.used = r.memory ?? '';
  row.dataset.limit = r.limit;
  return row;
}

function compare(a, b) {
  const [x, y] = [a[order.key], b[order.key]];
  const n = typeof x === 'string' ? x.localeCompare(y) : (x ?? -1) - (y ?? -1);
  return order.down ? -n : n;
}

function drawRows() {
  const wanted = document.getElementById('filter').value.toLowerCase();
  const shown = rows.filter((r) => `${r.name} ${r.place} ${r.uuid}`.toLowerCase().includes(wanted)).sort(compare);
  document.querySelector('#containers tbody').replaceChildren(...shown.map(drawRow));
  for (const button of document.querySelectorAll('#containers th button')) {
    const chosen = button.dataset.key === order.key;
    button.parentElement.setAttribute('aria-sort', chosen ? (order.down ? 'descending' : 'ascending') : 'none');
  }
}

function drawErrors(errors) {
  const list = document.getElementById('errors');
  list.replaceChildren(...errors.map((e) => element('li', '', e.node ? `${e.node}: ${e.error}` : e.error)));
  list.hidden = errors.length === 0;
}

function draw(fleet) {
  rows = readRows(fleet);
  drawErrors(fleet.errors ?? []);
  drawSums(fleet);
  drawNodes(fleet);
  drawRows();
}

async function refresh() {
  const state = document.getElementById('state');
  try {
    const answer = await fetch('fleet');
    if (!answer.ok) throw new Error(`${answer.status} ${(await answer.text()).slice(0, 200)}`);
    const fleet = await answer.json();
    draw(fleet);
    state.textContent = `At ${new Date(fleet.at).toLocaleTimeString()}`;
    state.className = '';
  } catch (e) {
    state.textContent = `No data: ${e.message}`;
    state.className = 'bad';
  }
  setTimeout(refresh, pause);
}

for (const button of document.querySelectorAll('#containers th button')) {
  button.addEventListener('click', () => {
    order.down = order.key === button.dataset.key ? !order.down : button.dataset.key !== 'name' && button.dataset.key !== 'place';
    order.key = button.dataset.key;
    drawRows();
  });
}
document.getElementById('filter').addEventListener('input', drawRows);
refresh();
