"""Recovery: a data directory becomes the state of an engine (`docs/spec/storage.md#sec-9`).

    look      reads and judges a directory, and changes nothing
    attach    puts the slots of a topic's segments into the topic
    salvage   keeps records that nothing describes any more, and bounds what lost log bytes held
    images    turns snapshot items into topics and routers, and back
    recover   a start: takes the lock, looks, repairs, logs what was lost, opens the writers
    reader    looks without the lock, while a server may be at work in the directory

Never writes below a data directory but in `recover`, once `look` has returned.
"""
