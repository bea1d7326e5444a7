use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use tempfile::TempDir;

use super::*;

const LIMIT: ByteCount = ByteCount::kib(1);

/// `root/sub/a`, `other/secret`, links in and out, and what is no file.
fn disk() -> (TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let disk = temporary.path().canonicalize().unwrap();
    for folder in ["root/sub", "other", "root-too"] {
        fs::create_dir_all(disk.join(folder)).unwrap();
    }
    fs::write(disk.join("root/sub/a"), "inside").unwrap();
    fs::write(disk.join("root-too/a"), "neighbour").unwrap();
    fs::write(disk.join("other/secret"), "secret").unwrap();
    symlink(disk.join("root/sub/a"), disk.join("root/absolute")).unwrap();
    symlink("sub/../sub/a", disk.join("root/relative")).unwrap();
    symlink(disk.join("other/secret"), disk.join("root/out")).unwrap();
    symlink("../other", disk.join("root/folder-out")).unwrap();
    symlink("nowhere", disk.join("root/dangling")).unwrap();
    mkfifo(&disk.join("root/pipe"), Mode::S_IRWXU).unwrap();
    (temporary, disk)
}

fn told(files: &Files, path: &Path) -> String {
    match files.read(path, LIMIT) {
        Ok(bytes) => String::from_utf8(bytes).unwrap(),
        Err(error) => format!("{:?}: {error}", error.kind()),
    }
}

#[test]
fn links_that_stay_inside_are_followed_and_no_other() {
    let (_temporary, disk) = disk();
    let files = Files::beneath(&[disk.join("root")]).unwrap();
    for path in ["root/sub/a", "root/absolute", "root/relative", "root/sub/../absolute"] {
        assert_eq!(told(&files, &disk.join(path)), "inside", "{path}");
    }
    let outside = "PermissionDenied: it lies outside of the folders that may be read";
    for path in
        ["root/out", "root/folder-out/secret", "other/secret", "root-too/a", "root/../other/secret"]
    {
        assert_eq!(told(&files, &disk.join(path)), outside, "{path}");
        assert_ne!(told(&Files::anywhere(), &disk.join(path)), outside, "{path}");
    }
    for missing in ["root/dangling", "root/nothing"] {
        assert!(told(&files, &disk.join(missing)).starts_with("NotFound: "));
        assert!(files.admits(&disk.join(missing)));
    }
    // Not even that nothing is there.
    for missing in ["other/nothing", "root/../other/nothing"] {
        assert_eq!(told(&files, &disk.join(missing)), outside);
    }
    assert!(files.admits(&disk.join("root/absolute")) && !files.admits(&disk.join("root/out")));
    let both = Files::beneath(&[disk.join("root"), disk.join("other")]).unwrap();
    assert_eq!(told(&both, &disk.join("root/out")), "secret");
    assert!(Files::beneath(&[disk.join("nowhere")]).is_err());
}

#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let (_temporary, disk) = disk();
    let _listener = UnixListener::bind(disk.join("root/socket")).unwrap();
    for files in [Files::anywhere(), Files::beneath(&[disk.join("root"), "/dev".into()]).unwrap()] {
        let told = |path: &Path| told(&files, path);
        assert_eq!(
            told(&disk.join("root/pipe")),
            "InvalidInput: it is a named pipe, not a regular file"
        );
        assert!(told(&disk.join("root")).contains("a folder"));
        assert_eq!(
            told(Path::new("/dev/zero")),
            "InvalidInput: it is a device, not a regular file"
        );
        // Its opening fails in the kernel.
        assert!(files.open(&disk.join("root/socket")).is_err());
    }
}

#[test]
fn no_more_is_read_than_the_limit() {
    let (_temporary, disk) = disk();
    let file = disk.join("root/sub/a");
    for files in [Files::anywhere(), Files::beneath(&[disk.join("root")]).unwrap()] {
        fs::write(&file, vec![b'x'; 1024]).unwrap();
        assert_eq!(files.read(&file, LIMIT).unwrap().len(), 1024);
        fs::write(&file, vec![b'x'; 1025]).unwrap();
        let error = files.read(&file, LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("more than 1.00 KiB"), "{error}");
    }
    // A terabyte, of which nothing takes place on the disk.
    File::options().write(true).open(&file).unwrap().set_len(1 << 40).unwrap();
    assert!(Files::anywhere().read(&file, LIMIT).is_err());
}

/// Somebody swaps a folder for a link out of the root, again and again, while it is read.
#[test]
fn a_link_that_is_changed_after_the_look_leads_nowhere() {
    let (_temporary, disk) = disk();
    let (inside, link) = (disk.join("root/sub"), disk.join("root/swapped"));
    fs::write(disk.join("other/a"), "secret").unwrap();
    let files = Files::beneath(&[disk.join("root")]).unwrap();
    let done = AtomicBool::new(false);
    let swap = |to: &Path| {
        let fresh = disk.join("root/fresh");
        symlink(to, &fresh).unwrap();
        fs::rename(&fresh, &link).unwrap();
    };
    swap(&inside);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                swap(&disk.join("other"));
                swap(&inside);
            }
        });
        for _ in 0..2_000 {
            let told = told(&files, &link.join("a"));
            assert!(!told.contains("secret"), "{told}");
        }
        done.store(true, Ordering::Relaxed);
    });
}
