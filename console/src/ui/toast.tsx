/** Short messages about what was just done. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

let told: (toast: Toast) => void = () => undefined;
let last = 0;
const SHOWN_MS = 5000;

export function say(text: string, bad = false): void {
  told({ id: ++last, text, bad });
}

export const sayError = (error: unknown): void => say((error as Error).message, true);

export async function copyText(text: string, what: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard for pages without TLS: the old way works there.
    const area = document.createElement("textarea");
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(`${what} copied`);
}

export function Toasts(): JSX.Element {
  const [toasts, setToasts] = useState<Toast[]>([]);
  useEffect(() => {
    told = (toast) => {
      setToasts((now) => [...now.slice(-2), toast]);
      setTimeout(() => setToasts((now) => now.filter((one) => one.id !== toast.id)), SHOWN_MS);
    };
  }, []);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.map((toast) => (
        <div key={toast.id} class={toast.bad ? "toast bad" : "toast"}>
          {toast.text}
        </div>
      ))}
    </div>
  );
}
