/** Numbers, sizes and times as people read them. */

const whole = new Intl.NumberFormat("en");
export const count = (value: number): string => whole.format(value);

/** 1234567 as 1.23M: for places where the order of magnitude matters. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return "–";
  if (size < 1000) return Number.isInteger(value) ? String(value) : size < 10 ? value.toFixed(2).replace(/\.?0+$/, "") : value.toFixed(1).replace(/\.0$/, "");
  for (const [unit, name] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ] as const)
    if (size >= unit) return (value / unit).toPrecision(3).replace(/\.?0+$/, (zeros) => (zeros.includes(".") ? "" : zeros)) + name;
  return String(value);
}

export function bytes(value: number): string {
  let left = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (left < 1024 || unit === "TiB") return unit === "B" ? `${left} B` : `${left < 10 ? left.toFixed(1) : Math.round(left)} ${unit}`;
    left /= 1024;
  }
  return String(value);
}

export function rate(perSecond: number | undefined): string {
  if (perSecond === undefined) return "–";
  if (perSecond <= 0) return "0";
  if (perSecond < 0.1) return "<0.1";
  return short(perSecond < 10 ? Math.round(perSecond * 10) / 10 : Math.round(perSecond));
}

export function duration(ms: number): string {
  const s = Math.max(0, ms) / 1000;
  if (s < 1) return `${Math.round(Math.max(0, ms))} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1).replace(/\.0$/, "") : Math.round(s)} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min`;
  const h = Math.floor(m / 60);
  if (h < 48) return `${h} h ${m % 60 ? `${m % 60} min` : ""}`.trim();
  return `${Math.floor(h / 24)} d`;
}

export function ago(ts: number | null | undefined, now = Date.now()): string {
  if (ts === null || ts === undefined) return "never";
  const ms = now - ts;
  return ms < 1000 ? "just now" : `${duration(ms)} ago`;
}

const pad = (value: number, width = 2): string => String(value).padStart(width, "0");

/** Local time, to the millisecond. */
export function clock(ts: number): string {
  const at = new Date(ts);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

export function day(ts: number): string {
  const at = new Date(ts);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
}

export const dateTime = (ts: number): string => `${day(ts)} ${clock(ts)}`;

export const plural = (value: number, one: string, many = one + "s"): string => `${count(value)} ${value === 1 ? one : many}`;
