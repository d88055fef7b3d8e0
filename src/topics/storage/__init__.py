"""Storage: everything below the data directory. All of it reaches the disk only through `storage.fs.Fs`."""
