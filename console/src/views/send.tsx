/** Send a record, or an old one again: payloads go as they are typed, so exact numbers stay exact. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call, type RecordRow, topicPath } from "../lib/api.ts";
import { jsonProblem, Raw } from "../lib/json.ts";
import { Button, Field } from "../ui/bits.tsx";
import { Dialog } from "../ui/dialog.tsx";
import { say, sayError } from "../ui/toast.tsx";

export function recordBody(data: string, fields: { tag?: string; node?: string; meta?: string }): string {
  const members = [`"data":${data}`];
  if (fields.tag) members.push(`"tag":${JSON.stringify(fields.tag)}`);
  if (fields.node) members.push(`"node":${JSON.stringify(fields.node)}`);
  if (fields.meta) members.push(`"meta":${fields.meta}`);
  return `{"records":[{${members.join(",")}}]}`;
}

export function SendDialog({ topic, record, onClose }: { topic: string; record?: RecordRow; onClose: () => void }): JSX.Element {
  const [to, setTo] = useState(topic);
  const [data, setData] = useState(record?.data ?? '{\n  "hello": "world"\n}');
  const [tag, setTag] = useState(record?.tag ?? "");
  const [meta, setMeta] = useState(record?.meta ?? "");
  const [asking, setAsking] = useState(false);
  const problem = jsonProblem(data);
  const metaProblem = meta.trim() ? jsonProblem(meta) : null;
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (problem || metaProblem) return;
    if (record && !asking) return setAsking(true);
    try {
      const answer = await call<{ last_seq: number }>("POST", topicPath(to), new Raw(recordBody(data, { tag, node: record?.node, meta: meta.trim() })));
      say(`Sent to ${to} as seq ${answer.last_seq}`);
      onClose();
    } catch (error) {
      sayError(error);
    }
  };
  return (
    <Dialog title={record ? `Send seq ${record.seq} again` : `Send to ${topic}`} onClose={onClose} wide>
      <form onSubmit={send}>
        {record && (
          <Field label="To the topic" hint={record && to === topic ? "Readers of this topic will see it a second time." : undefined}>
            <input value={to} required autocomplete="off" spellcheck={false} onInput={(event) => (setTo(event.currentTarget.value), setAsking(false))} />
          </Field>
        )}
        <Field label="Data, any JSON" error={problem}>
          <textarea rows={10} value={data} spellcheck={false} onInput={(event) => setData(event.currentTarget.value)} />
        </Field>
        <div class="fields">
          <Field label="Tag" hint="optional">
            <input value={tag} autocomplete="off" spellcheck={false} onInput={(event) => setTag(event.currentTarget.value)} />
          </Field>
          <Field label="Meta" hint="optional, a JSON object" error={metaProblem}>
            <input value={meta} autocomplete="off" spellcheck={false} onInput={(event) => setMeta(event.currentTarget.value)} />
          </Field>
        </div>
        {asking && (
          <p class="asking" role="alert">
            One record will be appended to <b>{to}</b>.
          </p>
        )}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" icon="send" disabled={problem !== null || metaProblem !== null}>
            {record ? (asking ? "Yes, send it again" : "Send again") : "Send one record"}
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
