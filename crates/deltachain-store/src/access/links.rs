//! Checks of hard links, by which a directory creates documents under names that are free, and of
//! symbolic links in the path of a directory.

use std::fs;
use std::io;
use std::path::Path;

use deltachain::files::MARKER;
use deltachain::{Error, Result};

/// Checks that a file system supports hard links, before a chain is created in it to which no
/// version could be published.
///
/// # Errors
/// USAGE if it does not, or if the directory belongs to something else; IO.
pub(crate) fn check_links(directory: &Path) -> Result<()> {
    if directory.join(MARKER).exists() {
        let message = "this directory is managed by a follower or by another command: choose \
                       another one for the chain";
        return Err(Error::usage(message).in_file(directory));
    }
    check_links_by(directory, |from, to| fs::hard_link(from, to))
}

fn check_links_by(directory: &Path, link: impl Fn(&Path, &Path) -> io::Result<()>) -> Result<()> {
    let place = tempfile::Builder::new()
        .prefix("doctor-")
        .tempdir_in(directory);
    let place =
        place.map_err(|error| Error::io("creating a directory", error).in_file(directory))?;
    let file = place.path().join("file");
    fs::write(&file, "x").map_err(|error| Error::io("writing", error).in_file(&file))?;
    let linked = place.path().join("link");
    let Err(error) = link(&file, &linked) else {
        return Ok(());
    };
    // A network file system may repeat a request that was done. The directory is new, so the name
    // belongs to this link.
    if error.kind() == io::ErrorKind::AlreadyExists && fs::read(&linked).is_ok_and(|x| x == b"x") {
        return Ok(());
    }
    if !is_without_links(&error) {
        return Err(Error::io("making a hard link", error).in_file(directory));
    }
    let text = format!(
        "this file system does not support hard links ({error}), so two publishers could both \
         publish the same version: use another file system, or a bucket"
    );
    Err(Error::usage(text).in_file(directory))
}

/// True for the answers of file systems that have no hard links, and of those that allow a file no
/// second name.
pub(crate) fn is_without_links(error: &io::Error) -> bool {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        let known = [Errno::PERM, Errno::OPNOTSUPP, Errno::MLINK, Errno::NOSYS];
        if let Some(errno) = Errno::from_io_error(error) {
            return known.contains(&errno);
        }
    }
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::TooManyLinks
    )
}

/// Checks that no symbolic link on the way to a directory leads to nothing.
///
/// # Errors
/// USAGE, with the link and the place that it leads to.
pub(crate) fn find_dangling(directory: &Path) -> Result<()> {
    for path in directory.ancestors() {
        if !path.is_symlink() || path.exists() {
            continue;
        }
        let target = fs::read_link(path).unwrap_or_default();
        let text = format!(
            "this is a symbolic link to {}, which does not exist: make that directory, or remove \
            the link",
            target.display()
        );
        return Err(Error::usage(text).in_file(path));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use deltachain::ErrorClass;

    use super::*;

    #[test]
    fn a_chain_is_not_begun_where_links_cannot_be_made() {
        let place = tempfile::tempdir().unwrap();
        check_links(place.path()).unwrap();
        let error = check_links_by(place.path(), |_, _| Err(io::ErrorKind::Unsupported.into()))
            .unwrap_err();
        assert!(error.message().contains("hard links"), "{error:?}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_failure_to_link_is_what_it_is() {
        use rustix::io::Errno;
        let place = tempfile::tempdir().unwrap();
        let failure =
            |errno: Errno| check_links_by(place.path(), |_, _| Err(errno.into())).unwrap_err();
        for errno in [Errno::PERM, Errno::OPNOTSUPP, Errno::MLINK, Errno::NOSYS] {
            let error = failure(errno);
            assert_eq!(error.class(), ErrorClass::Usage, "{error}");
            assert!(
                error.message().contains("does not support hard links"),
                "{error}"
            );
        }
        for errno in [
            Errno::NOSPC,
            Errno::IO,
            Errno::EXIST,
            Errno::ACCESS,
            Errno::ROFS,
        ] {
            let error = failure(errno);
            assert_eq!(error.class(), ErrorClass::Io, "{error}");
            assert!(
                !format!("{error:#}").contains("does not support hard links"),
                "{error:#}"
            );
        }
        assert!(failure(Errno::NOSPC).advice().contains("inodes"));
        // A request that was done, and was sent again.
        check_links_by(place.path(), |from, to| {
            fs::hard_link(from, to)?;
            Err(Errno::EXIST.into())
        })
        .unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_nothing_is_named() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("chain");
        std::os::unix::fs::symlink(place.path().join("nowhere"), &link).unwrap();
        for path in [link.clone(), link.join("below")] {
            let error = find_dangling(&path).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("nowhere, which does not exist"), "{text}");
            assert_eq!(error.file(), link.to_str());
        }
        fs::create_dir(place.path().join("nowhere")).unwrap();
        find_dangling(&link).unwrap();
        find_dangling(&place.path().join("missing")).unwrap();
    }
}
