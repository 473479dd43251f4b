"""Readers of a user's own files: tables, arrays, texts and image folders."""
