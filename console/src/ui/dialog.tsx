/** Dialogs on the browser's own element: focus stays inside, Escape closes. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Button, Field } from "./bits.tsx";
import { sayError } from "./toast.tsx";

export function Dialog({ title, onClose, children, wide }: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }): JSX.Element {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = ref.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog ref={ref} class={wide ? "wide" : ""} aria-label={title} onCancel={(event) => (event.preventDefault(), onClose())} onClick={(event) => event.target === ref.current && onClose()}>
      <div class="dialog-body">
        <header>
          <h2>{title}</h2>
          <Button icon="close" kind="quiet" label="Close" onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

export interface Ask {
  title: string;
  text: ComponentChildren;
  action: string;
  danger?: boolean;
  /** What must be typed before it is done, for what cannot be undone. */
  typed?: string;
  run: () => Promise<unknown>;
}

/** Ask before something is done that others notice. */
export function Confirm({ ask, onClose }: { ask: Ask; onClose: () => void }): JSX.Element {
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const run = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      await ask.run();
      onClose();
    } catch (error) {
      sayError(error);
      setBusy(false);
    }
  };
  return (
    <Dialog title={ask.title} onClose={onClose}>
      <form onSubmit={run}>
        <div class="dialog-text">{ask.text}</div>
        {ask.typed !== undefined && (
          <Field label={`Type ${ask.typed} to go on`}>
            <input value={typed} autocomplete="off" spellcheck={false} onInput={(event) => setTyped(event.currentTarget.value)} />
          </Field>
        )}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind={ask.danger ? "danger" : "primary"} disabled={busy || (ask.typed !== undefined && typed !== ask.typed)}>
            {ask.action}
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

/** `[dialog, ask]`: put the first into the view, call the second. */
export function useConfirm(): [JSX.Element | null, (ask: Ask) => void] {
  const [ask, setAsk] = useState<Ask | null>(null);
  return [ask && <Confirm ask={ask} onClose={() => setAsk(null)} />, setAsk];
}
