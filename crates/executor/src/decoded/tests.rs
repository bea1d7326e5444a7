use std::{
    fs::File,
    thread,
    time::{Duration, SystemTime},
};

use orchestrator_data::image::RgbImage;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;

/// A crop of 112 × 112 pixels with its header.
const ENTRY: u64 = 3 * 112 * 112 + 72;

fn recipe() -> Recipe {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    Recipe::open(&data.join("models/tiny-clip")).unwrap()
}

struct Place {
    folder: TempDir,
    attempt: Attempt,
    _updates: mpsc::Receiver<crate::attempt::Update>,
}

impl Place {
    fn new() -> Self {
        let (updates, receiver) = mpsc::channel(1);
        let attempt = Attempt::new(updates);
        Self { folder: tempfile::tempdir().unwrap(), attempt, _updates: receiver }
    }

    fn cache(&self, limit: u64) -> DecodedCache {
        DecodedCache::open(self.folder.path().join("decoded"), ByteCount::bytes(limit)).unwrap()
    }

    /// A file, whose bytes stand for a picture of one colour.
    fn image(&self, name: &str, colour: u8) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, [colour]).unwrap();
        path
    }

    /// Bytes of all images that are kept.
    fn kept(&self) -> u64 {
        let files = fs::read_dir(self.folder.path().join("decoded")).unwrap().map(Result::unwrap);
        let images = files.filter(|file| file.file_name() != lock::FILE);
        images.map(|file| file.metadata().unwrap().len()).sum()
    }

    fn colour(&self, from: &Shelf<'_>, path: &Path) -> Result<u8, String> {
        let image = from.image(path, &self.attempt, || decode(path));
        image.crop.map(|crop| crop.pixels()[0])
    }
}

fn decode(path: &Path) -> Fresh {
    let bytes = fs::read(path).unwrap();
    let crop = match bytes[0] {
        0 => Err("black".to_owned()),
        colour => Ok(RgbImage::new(112, 112, vec![colour; 3 * 112 * 112]).unwrap()),
    };
    Fresh { image: Decoded { file: Digest::of(&bytes), crop }, lasting: true }
}

fn counted(shelf: &Shelf<'_>) -> (u64, u64) {
    (shelf.counts().decoded, shelf.counts().from_cache)
}

#[test]
fn an_image_is_decoded_once_and_again_when_it_was_edited() {
    let (place, recipe) = (Place::new(), recipe());
    let cache = place.cache(1 << 20);
    let shelf = Shelf::new(Some(&cache), &recipe);
    let (path, black) = (place.image("a", 7), place.image("black", 0));
    for _ in 0..2 {
        assert_eq!(place.colour(&shelf, &path), Ok(7));
        assert_eq!(place.colour(&shelf, &black), Err("black".to_owned()));
    }
    let whole = shelf.image(&path, &place.attempt, || unreachable!("it is kept"));
    assert_eq!((whole.file, whole.crop), (decode(&path).image.file, decode(&path).image.crop));
    assert_eq!(counted(&shelf), (2, 3));
    let link = place.folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(place.colour(&shelf, &link), Ok(7));
    assert_eq!(counted(&shelf), (2, 4), "the same file by another name");

    // As many bytes, and the time set back: only the inode's own time tells.
    let before = path.metadata().unwrap().modified().unwrap();
    thread::sleep(Duration::from_millis(20));
    fs::write(&path, [9]).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    assert_eq!(place.colour(&shelf, &path), Ok(9));
    assert_eq!(counted(&shelf), (3, 4));
}

#[test]
fn the_limit_holds_and_what_was_not_used_for_longest_leaves() {
    let (place, recipe) = (Place::new(), recipe());
    let limit = 8 * ENTRY + 100;
    let cache = place.cache(limit);
    let shelf = Shelf::new(Some(&cache), &recipe);
    let paths: Vec<PathBuf> =
        (1..=30).map(|colour| place.image(&format!("{colour}"), colour)).collect();
    for path in &paths[..8] {
        place.colour(&shelf, path).unwrap();
    }
    assert_eq!(place.kept(), 8 * ENTRY);
    let old = SystemTime::now() - Duration::from_mins(1);
    for file in fs::read_dir(&cache.folder).unwrap().map(Result::unwrap) {
        File::open(file.path()).unwrap().set_modified(old).unwrap();
    }
    place.colour(&shelf, &paths[0]).unwrap();
    for path in &paths[8..] {
        place.colour(&shelf, path).unwrap();
        assert!(place.kept() <= limit, "{} of {limit}", place.kept());
        place.colour(&shelf, &paths[0]).unwrap();
    }
    let counts = shelf.counts();
    assert_eq!((counts.decoded, counts.from_cache), (30, 23), "the first was in use all the time");
    assert_eq!(counts.cache_peak_bytes, ByteCount::bytes(8 * ENTRY));
    assert_eq!(counts.cache_limit_bytes, ByteCount::bytes(limit));

    let small = Place::new();
    let cache = small.cache(ENTRY - 1);
    let shelf = Shelf::new(Some(&cache), &recipe);
    let path = small.image("a", 1);
    assert_eq!((small.colour(&shelf, &path), small.colour(&shelf, &path)), (Ok(1), Ok(1)));
    assert_eq!((counted(&shelf), small.kept()), ((2, 0), 0), "too large to be kept");
}

#[test]
fn a_damaged_image_is_decoded_again_and_replaced() {
    let (place, recipe) = (Place::new(), recipe());
    let cache = place.cache(1 << 20);
    let path = place.image("a", 3);
    place.colour(&Shelf::new(Some(&cache), &recipe), &path).unwrap();
    let mut files = fs::read_dir(&cache.folder).unwrap().map(|file| file.unwrap().path());
    let file = files.find(|file| !file.ends_with(lock::FILE)).unwrap();
    let whole = fs::read(&file).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let cut = whole[..whole.len() / 2].to_vec();
    for damage in [cut, flipped(0), flipped(7), flipped(20), flipped(whole.len() - 1), Vec::new()] {
        fs::write(&file, damage).unwrap();
        let shelf = Shelf::new(Some(&cache), &recipe);
        assert_eq!((place.colour(&shelf, &path), counted(&shelf)), (Ok(3), (1, 0)));
        assert_eq!(fs::read(&file).unwrap(), whole);
        assert!(Room::peak(&cache.locks).unwrap() >= place.kept());
    }
}

#[test]
fn executors_beside_each_other_decode_each_image_once() {
    let (place, recipe) = (Place::new(), recipe());
    let paths: Vec<PathBuf> =
        (1..=40).map(|colour| place.image(&format!("{colour}"), colour)).collect();
    let slow = |path: &Path| {
        thread::sleep(Duration::from_millis(2));
        decode(path)
    };
    let caches = [place.cache(1 << 24), place.cache(1 << 24)];
    let shelves = [0, 1].map(|one: usize| Shelf::new(Some(&caches[one]), &recipe));
    thread::scope(|scope| {
        for shelf in shelves.iter().chain(&shelves) {
            let (paths, place) = (&paths, &place);
            scope.spawn(move || {
                for path in paths {
                    let image = shelf.image(path, &place.attempt, || slow(path));
                    assert_eq!(image.file, decode(path).image.file);
                }
            });
        }
    });
    let [(first, _), (second, _)] = [counted(&shelves[0]), counted(&shelves[1])];
    assert_eq!(first + second, 40);
    assert_eq!(place.kept(), 40 * ENTRY);
}

#[test]
fn whoever_stops_waits_for_nobody_and_what_may_change_is_not_kept() {
    let (place, recipe) = (Place::new(), recipe());
    let cache = place.cache(1 << 20);
    let shelf = Shelf::new(Some(&cache), &recipe);
    let path = place.image("a", 5);
    let passing = || Fresh { lasting: false, ..decode(&path) };
    shelf.image(&path, &place.attempt, passing);
    assert_eq!(place.kept(), 0);
    shelf.image(&path, &place.attempt, || {
        // Somebody has the image's lock: this thread, in the middle of decoding it.
        place.attempt.stop();
        let inner = shelf.image(&path, &place.attempt, || decode(&path));
        assert!(inner.crop.is_ok());
        decode(&path)
    });
    assert_eq!(counted(&shelf), (3, 0));
    let none = Shelf::new(None, &recipe);
    place.colour(&none, &path).unwrap();
    assert_eq!((counted(&none), none.counts().cache_limit_bytes), ((1, 0), ByteCount::ZERO));
}
