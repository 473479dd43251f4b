"""A user's own files: tables, arrays, texts and folders of images, read so that a bad row has its line told."""
