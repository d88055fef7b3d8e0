import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, setKey } from "../lib/api.ts";
import { Button, Field } from "../ui/bits.tsx";
import { Icon } from "../ui/icons.tsx";

export function SignIn({ onKey }: { onKey: () => Promise<void> }): JSX.Element {
  const [key, setTyped] = useState("");
  const [keep, setKeep] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const enter = async (event: Event): Promise<void> => {
    event.preventDefault();
    setKey(key.trim(), keep);
    try {
      await onKey();
    } catch (error) {
      setKey("", false);
      setProblem(error instanceof ApiError && error.status === 401 ? "The server does not know this key." : (error as Error).message);
    }
  };
  return (
    <form class="card signin" onSubmit={enter}>
      <Icon name="key" size={28} />
      <h1>Sign in</h1>
      <p>This server wants an API key. What the key may not do is not offered.</p>
      <Field label="API key" error={problem}>
        <input type="password" value={key} autocomplete="current-password" required onInput={(event) => setTyped(event.currentTarget.value)} />
      </Field>
      <label class="check">
        <input type="checkbox" checked={keep} onChange={(event) => setKeep(event.currentTarget.checked)} />
        <span>
          Keep it until this tab is closed
          <small>Otherwise it is in the memory of this page only and gone after a reload. It is never in an address.</small>
        </span>
      </label>
      <Button type="submit" kind="primary">
        Sign in
      </Button>
    </form>
  );
}
