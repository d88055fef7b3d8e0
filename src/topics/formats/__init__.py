"""Formats: bytes to values and back for everything on disk (`docs/spec/storage.md#sec-2`, `docs/spec/storage.md#sec-3`,
`docs/spec/storage.md#sec-6`, `docs/spec/storage.md#sec-8`, `docs/spec/storage.md#sec-12` and
`docs/spec/storage.md#sec-15`). Pure: no I/O.

Hot functions are plural: one call for a batch, columns (numpy) out. A bad frame is a result; places that must raise
raise `topics.errors.Corruption`, and `UnsupportedVersion` for a snapshot of another version. Each format has a page in
docs/formats and golden bytes in tests/formats/golden. Import the modules, not names from here:

frame      FrameType, flag bits, encode_frame(kind, ts=, data=, ...), encode_appends(topic_id=, first_seq=, ts=, datas=,
           nodes=, tags=, durable=, more_after=) -> EncodedAppends(buffer, offsets, lengths)
blob       blob(data_text, meta_text), blobs, split_blob, accounted_size; plural over a buffer: meta_lengths,
           accounted_sizes (all but the plural ones also in `frame`)
wal        scan_wal(buffer, start, end, verify=) -> WalColumns(... end, stop: Stop, reason, bodies), complete_end,
           complete_count, find_next_valid, scan_behind; bodies of types 2..13: ops, OpenMark, CkptMark, TierMark
           and others; encode_body, decode_body(kind, data), with_header, kind_of
segment    encode_segment_frames, segment_frames_from_wal(wal_buffer, offsets, lengths, base=) -> SegmentFrames(buffer,
           idx), scan_segment -> SegmentColumns, verify_frames -> bools; IDX_DTYPE, read_idx, empty_slots, idx_agrees
           -> reason | None, rebuild_idx -> RebuiltIdx(idx, bad); decode_columns(data, idx, first_seq=, slots=, want=,
           verify=, base=) -> FrameColumns, decode_frames (frames without an index)
run_frames segment_frames_of(run): segment frames of a RecordRun, wherever its bodies came from
sidecar    encode_sidecar(tags=, sizes=, data_len=), TagSidecar(buffer).lookup_eq / lookup_prefix / sizes,
           sidecar_matches(buffer, count=, data_len=)
snapshot   Snapshot, TopicItem, RouterItem, ...; encode_snapshot, decode_snapshot(buffer, file=)
names      every file name: *_name builds, parse_* gives the number or None; pick_canonical, shard_of, group_keys
versions   format versions
arrow_stream   Arrow's stream format, for answers: schema_message, batch_message, END
buffers    gathers and checksums over one buffer, shared by the decoders
"""
