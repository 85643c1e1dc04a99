"""Durable writes for the wiring: the primitives of `tasks.files` under the name that flows use."""

from tasks.files import (
    FileEntry,
    Ledger,
    digest_entries,
    digest_tree,
    disk_error,
    fault_point,
    fsync_dir,
    list_tree,
    remove_temporaries,
    replace_dir,
    sha256_file,
    sync_tree,
    temporary,
    write_durable,
    write_json,
)

__all__ = [
    "FileEntry",
    "Ledger",
    "digest_entries",
    "digest_tree",
    "disk_error",
    "fault_point",
    "fsync_dir",
    "list_tree",
    "remove_temporaries",
    "replace_dir",
    "sha256_file",
    "sync_tree",
    "temporary",
    "write_durable",
    "write_json",
]
