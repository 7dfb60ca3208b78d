"""The bytes of one record batch: pure functions and views, no files, no clock."""
