//! What config.json may say.
