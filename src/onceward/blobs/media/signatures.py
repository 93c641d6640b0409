"""The built-in table: what a file of a type must begin with. It is asked first and answers alike everywhere.

A row stands here only if its bytes are long or odd enough that nothing else begins so; the shorter ones come with a
check of what follows them, in `checked.py`.
"""

from __future__ import annotations

# (offset, bytes, media type). The first row that matches answers, so a special case stands above its general one.
SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    # Pictures.
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"CR\x02", "image/x-canon-cr2"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (0, b"II+\x00\x08\x00\x00\x00", "image/tiff"),
    (0, b"MM\x00+\x00\x08\x00\x00", "image/tiff"),
    (0, b"8BPS\x00\x01", "image/vnd.adobe.photoshop"),
    (0, b"8BPS\x00\x02", "image/vnd.adobe.photoshop"),
    (0, b"\x00\x00\x00\x0cjP  \r\n\x87\n", "image/jp2"),
    (0, b"\x00\x00\x00\x0cJXL \r\n\x87\n", "image/jxl"),
    (0, b"gimp xcf ", "image/x-xcf"),
    (0, b"qoif", "image/qoi"),
    (0, b"v/1\x01\x02\x00", "image/x-exr"),
    (0, b"v/1\x01\x02\x02", "image/x-exr"),
    (0, b"#?RADIANCE\n", "image/vnd.radiance"),
    (0, b"DDS |\x00\x00\x00", "image/vnd.ms-dds"),
    (0, b"AT&TFORM", "image/vnd.djvu"),
    (0, b"\xd7\xcd\xc6\x9a\x00\x00", "image/wmf"),
    (40, b" EMF", "image/emf"),
    (0, b"SIMPLE  =                    T", "image/fits"),
    (128, b"DICM", "application/dicom"),
    # Sound and film.
    (0, b"ID3", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"MThd\x00\x00\x00\x06", "audio/midi"),
    (0, b"#!AMR", "audio/amr"),
    (0, b".snd\x00\x00", "audio/basic"),
    (0, b"wvpk", "audio/x-wavpack"),
    (0, b"MAC ", "audio/x-ape"),
    (0, b"caff\x00\x01\x00\x00", "audio/x-caf"),
    (0, b"FLV\x01", "video/x-flv"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c", "video/x-ms-asf"),
    (0, b"\x00\x00\x01\xba", "video/mpeg"),
    (0, b"\x00\x00\x01\xb3", "video/mpeg"),
    (0, b".RMF\x00\x00\x00", "application/vnd.rn-realmedia"),
    (0, b"CWS", "application/vnd.adobe.flash.movie"),
    (0, b"FWS", "application/vnd.adobe.flash.movie"),
    # Documents.
    (0, b"%PDF-", "application/pdf"),
    (0, b"{\\rtf", "application/rtf"),
    (0, b"%!PS", "application/postscript"),
    (0, b"\xc5\xd0\xd3\xc6", "application/postscript"),
    (60, b"BOOKMOBI", "application/x-mobipocket-ebook"),
    (0, b"ITSF\x03\x00\x00\x00", "application/vnd.ms-htmlhelp"),
    (0, b"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d", "application/onenote"),
    (0, b"\xf7\x02\x01\x83\x92\xc0\x1c;", "application/x-dvi"),
    # Packed.
    (0, b"\x1f\x8b\x08", "application/gzip"),
    (0, b"\xfd7zXZ\x00", "application/x-xz"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"Rar!\x1a\x07", "application/vnd.rar"),
    (0, b"\x04\x22\x4d\x18", "application/x-lz4"),
    (0, b"LZIP\x01", "application/x-lzip"),
    (0, b"\x1f\x9d", "application/x-compress"),
    (0, b"MSCF\x00\x00\x00\x00", "application/vnd.ms-cab-compressed"),
    (0, b"xar!\x00\x1c", "application/x-xar"),
    (0, b"!<arch>\ndebian-binary", "application/vnd.debian.binary-package"),
    (0, b"!<arch>\n", "application/x-archive"),
    (0, b"\xed\xab\xee\xdb", "application/x-rpm"),
    (0, b"070701", "application/x-cpio"),
    (0, b"070707", "application/x-cpio"),
    (257, b"ustar\x00", "application/x-tar"),
    (257, b"ustar  \x00", "application/x-tar"),
    (0, b"hsqs", "application/vnd.squashfs"),
    (0x8001, b"CD001", "application/x-iso9660-image"),
    # Programs.
    (0, b"\x00asm\x01\x00\x00\x00", "application/wasm"),
    (0, b"\x00asm\x0d\x00\x01\x00", "application/wasm"),
    (0, b"\xfe\xed\xfa\xce", "application/x-mach-binary"),
    (0, b"\xfe\xed\xfa\xcf", "application/x-mach-binary"),
    (0, b"\xce\xfa\xed\xfe", "application/x-mach-binary"),
    (0, b"\xcf\xfa\xed\xfe", "application/x-mach-binary"),
    (0, b"dex\n03", "application/vnd.android.dex"),
    (0, b"BC\xc0\xde", "application/x-llvm"),
    (0, b"L\x00\x00\x00\x01\x14\x02\x00\x00\x00\x00\x00\xc0\x00\x00\x00", "application/x-ms-shortcut"),
    # Data.
    (0, b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (0, b"PAR1", "application/vnd.apache.parquet"),
    (0, b"ARROW1\x00\x00", "application/vnd.apache.arrow.file"),
    (0, b"Obj\x01", "application/avro"),
    (0, b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
    (0, b"CDF\x01", "application/x-netcdf"),
    (0, b"CDF\x02", "application/x-netcdf"),
    (0, b"\xd4\xc3\xb2\xa1", "application/vnd.tcpdump.pcap"),
    (0, b"\xa1\xb2\xc3\xd4", "application/vnd.tcpdump.pcap"),
    (0, b"\x4d\x3c\xb2\xa1", "application/vnd.tcpdump.pcap"),
    (0, b"\x0a\x0d\x0d\x0a", "application/x-pcapng"),
    (0, b"\x93NUMPY", "application/x-npy"),
    (0, b"GGUF", "application/x-gguf"),
    (0, b"\x00\x01\x00\x00Standard Jet DB", "application/vnd.ms-access"),
    (0, b"\x00\x01\x00\x00Standard ACE DB", "application/vnd.ms-access"),
    (0, b"d8:announce", "application/x-bittorrent"),
    (0, b"d13:announce-list", "application/x-bittorrent"),
    (0, b"bplist00", "application/x-bplist"),
    (0, b"glTF\x02\x00\x00\x00", "model/gltf-binary"),
    (0, b"Kaydara FBX Binary", "application/x-fbx"),
    (0, b"BLENDER", "application/x-blender"),
    (0, b"age-encryption.org/v1", "application/x-age-encryption"),
    (0, b"regf", "application/x-ms-registry"),
    # Letters.
    (0, b"wOFF", "font/woff"),
    (0, b"wOF2", "font/woff2"),
    (0, b"OTTO\x00", "font/otf"),
    (0, b"ttcf\x00", "font/collection"),
)

# A file of these types may be text from its first byte to its last. The other signatures count only in data: a text that
# begins with "ID3" or "BLENDER" is a text.
OF_TEXT = frozenset({
    "application/pdf", "image/gif", "application/x-archive", "application/vnd.debian.binary-package", "image/fits",
})  # fmt: skip


def match(head: bytes) -> str | None:
    for offset, signature, media_type in SIGNATURES:
        if head.startswith(signature, offset):
            return media_type
    return None
