//! What a folder may hold.
