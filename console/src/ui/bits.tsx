/** The small parts that every view is made of. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError } from "../lib/api.ts";
import { Icon, type IconName } from "./icons.tsx";

export type Tone = "good" | "warn" | "bad" | "info" | "plain";

export function Badge({ tone = "plain", children, title }: { tone?: Tone; children: ComponentChildren; title?: string }): JSX.Element {
  return (
    <span class={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

export interface ButtonProps {
  icon?: IconName;
  onClick?: () => void;
  kind?: "plain" | "primary" | "danger" | "quiet";
  label?: string; // for buttons that are only an icon
  pressed?: boolean;
  disabled?: boolean;
  type?: "button" | "submit";
  title?: string;
  children?: ComponentChildren;
}

export function Button({ icon, onClick, kind = "plain", label, pressed, disabled, type = "button", title, children }: ButtonProps): JSX.Element {
  return (
    <button type={type} class={`btn ${kind}${children === undefined ? " only" : ""}`} onClick={onClick} aria-label={label} title={title ?? label} aria-pressed={pressed} disabled={disabled}>
      {icon && <Icon name={icon} size={16} />}
      {children !== undefined && <span>{children}</span>}
    </button>
  );
}

export function Stat({ name, value, unit, hint, tone, children }: { name: string; value: ComponentChildren; unit?: string; hint?: ComponentChildren; tone?: Tone; children?: ComponentChildren }): JSX.Element {
  return (
    <div class={`stat ${tone ?? ""}`}>
      <div class="stat-name">{name}</div>
      <div class="stat-value">
        {value}
        {unit && <small> {unit}</small>}
      </div>
      {children}
      {hint !== undefined && <div class="stat-hint">{hint}</div>}
    </div>
  );
}

export function Empty({ icon, title, children }: { icon: IconName; title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <Icon name={icon} size={32} />
      <h2>{title}</h2>
      {children && <div>{children}</div>}
    </div>
  );
}

export function Trouble({ error, again }: { error: Error | undefined; again?: () => void }): JSX.Element | null {
  if (!error) return null;
  const lost = error instanceof ApiError && error.status === 0;
  return (
    <div class="trouble" role="alert">
      <Icon name="warn" />
      <span>{lost ? "The server does not answer. The console asks again by itself." : error.message}</span>
      {again && <Button onClick={again}>Try now</Button>}
    </div>
  );
}

export function Field({ label, hint, error, children }: { label: string; hint?: string; error?: string | null; children: ComponentChildren }): JSX.Element {
  return (
    <label class="field">
      <span class="field-label">{label}</span>
      {children}
      {error ? <span class="field-error">{error}</span> : hint && <span class="field-hint">{hint}</span>}
    </label>
  );
}

export function Search({ value, onInput, label, id }: { value: string; onInput: (text: string) => void; label: string; id?: string }): JSX.Element {
  return (
    <span class="search">
      <Icon name="search" size={16} />
      <input id={id} type="search" value={value} placeholder={label} aria-label={label} spellcheck={false} autocomplete="off" onInput={(event) => onInput(event.currentTarget.value)} />
    </span>
  );
}

/** Choices of which one holds, as buttons in a row. */
export function Segmented<T extends string>({ label, value, options, onChange }: { label: string; value: T; options: readonly (readonly [T, ComponentChildren])[]; onChange: (value: T) => void }): JSX.Element {
  return (
    <div class="segmented" role="group" aria-label={label}>
      {options.map(([key, text]) => (
        <button type="button" key={key} aria-pressed={key === value} onClick={() => onChange(key)}>
          {text}
        </button>
      ))}
    </div>
  );
}

export function Tabs({ label, tabs, current }: { label: string; tabs: [string, string, string][]; current: string }): JSX.Element {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map(([key, text, to]) => (
        <a key={key} href={to} aria-current={key === current ? "page" : undefined}>
          {text}
        </a>
      ))}
    </nav>
  );
}

/** A bar from 0 to 1 in words and as a picture. */
export function Meter({ share, label, tone }: { share: number; label: string; tone?: Tone }): JSX.Element {
  return (
    <div class={`meter ${tone ?? ""}`} role="img" aria-label={label}>
      <i style={{ width: `${Math.min(100, Math.max(0, share * 100))}%` }} />
    </div>
  );
}

export function useWidth(): number {
  const [width, setWidth] = useState(innerWidth);
  useEffect(() => {
    const changed = (): void => setWidth(innerWidth);
    addEventListener("resize", changed);
    return () => removeEventListener("resize", changed);
  }, []);
  return width;
}

export function Loading(): JSX.Element {
  return (
    <div class="loading" role="status">
      Loading…
    </div>
  );
}
