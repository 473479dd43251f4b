"""Readers of a user's own files: tables, arrays, texts and image folders; errors name the line of a bad row."""
