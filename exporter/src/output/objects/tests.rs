//! Tests of object stores, against a small double of S3 that keeps parts until they are completed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;
use crate::tests::fixture::call;
use crate::tests::stored::stored;
use crate::{Destination, ExportError, Options, WriteError};

/// The content of the bucket, and what is on its way there.
#[derive(Default)]
struct Double {
    objects: BTreeMap<String, Vec<u8>>,
    uploads: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
    begun: u32,
    /// Answers that an upload cannot be completed.
    refuses: bool,
}

type SharedTokens = Arc<Mutex<Double>>;

impl Double {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: Bytes) -> (u16, String) {
        let asked: BTreeMap<&str, &str> =
            query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let upload = asked.get("uploadId").map(|id| (*id).to_owned());
        match (method.as_str(), upload) {
            ("POST", None) if query.starts_with("delete") => {
                let text = String::from_utf8_lossy(&body).into_owned();
                let mut deleted = String::new();
                for key in text.split("<Key>").skip(1).filter_map(|rest| rest.split('<').next()) {
                    let object = format!("{}/{key}", path.trim_end_matches('/'));
                    self.objects.retain(|stored, _| decoded(stored) != object);
                    deleted += &format!("<Deleted><Key>{key}</Key></Deleted>");
                }
                (200, format!("<DeleteResult>{deleted}</DeleteResult>"))
            }
            ("POST", None) => {
                self.begun += 1;
                let id = format!("u{}", self.begun);
                self.uploads.insert(id.clone(), BTreeMap::new());
                let tag = "InitiateMultipartUploadResult";
                let body = format!("<Bucket>b</Bucket><Key>{path}</Key><UploadId>{id}</UploadId>");
                (200, format!("<{tag}>{body}</{tag}>"))
            }
            ("PUT", Some(id)) => {
                let number = asked["partNumber"].parse().unwrap();
                self.uploads.get_mut(&id).unwrap().insert(number, body.to_vec());
                (200, String::new())
            }
            ("POST", Some(_)) if self.refuses => (403, "<Error><Code>No</Code></Error>".to_owned()),
            ("POST", Some(id)) => {
                let parts = self.uploads.remove(&id).unwrap();
                self.objects.insert(path.to_owned(), parts.into_values().flatten().collect());
                let tag = "CompleteMultipartUploadResult";
                (200, format!("<{tag}><Key>{path}</Key><ETag>e</ETag></{tag}>"))
            }
            ("PUT", None) => {
                self.objects.insert(path.to_owned(), body.to_vec());
                (200, String::new())
            }
            ("DELETE", Some(id)) => {
                self.uploads.remove(&id);
                (204, String::new())
            }
            ("DELETE", None) => {
                self.objects.remove(path);
                (204, String::new())
            }
            // Only manifests and lists of files are read back, which are text.
            (_, _) => match self.objects.get(path) {
                Some(bytes) => (200, String::from_utf8_lossy(bytes).into_owned()),
                None => (404, String::new()),
            },
        }
    }
}

async fn serve(double: SharedTokens) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = move |request: Request<Incoming>| {
        let double = Arc::clone(&double);
        async move {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let query = uri.query().unwrap_or_default();
            let (status, body) = double.lock().unwrap().answer(&method, uri.path(), query, body);
            let reply = Response::builder()
                .status(status)
                .header("etag", "e")
                .header("last-modified", "Sat, 21 Nov 2026 20:00:00 GMT")
                .body(Full::new(Bytes::from(body)));
            Ok::<_, Infallible>(reply.unwrap())
        }
    };
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(answer.clone());
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    format!("http://{address}")
}

fn bucket(endpoint: &str, url: &str) -> Bucket {
    let options = [
        ("aws_endpoint", endpoint),
        ("aws_access_key_id", "key"),
        ("aws_secret_access_key", "secret"),
        ("aws_region", "here"),
        ("aws_allow_http", "true"),
        ("path", "/usr/bin"),
    ];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    Bucket { url: url.to_owned(), options }
}

#[tokio::test]
async fn an_export_to_a_bucket_is_that_to_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let told = [("a", Some("g"), Some(1.0), vec![call(1, &[1, 2], &[&[3]])])];
    let store = stored(folder.path(), &told).await;
    let double = SharedTokens::default();
    let endpoint = serve(Arc::clone(&double)).await;
    let out = Destination::Bucket(bucket(&endpoint, "s3://b/some/folder"));
    let options = Options { out, ..Options::default() };
    let report = store.export(&options).await.unwrap();
    let names: Vec<_> = report.files.iter().map(|f| f.to_string_lossy().into_owned()).collect();
    let expected = ["trajectories.parquet", "_forks.pq", "manifest.json"];
    assert_eq!(names, expected.map(|name| format!("s3://b/some/folder/{name}")));
    let local = Options { out: folder.path().join("out").into(), ..Options::default() };
    let local = store.export(&local).await.unwrap();
    for (path, name) in local.files.iter().zip(expected) {
        let found = double.lock().unwrap().objects[&format!("/b/some/folder/{name}")].clone();
        assert_eq!(found, std::fs::read(path).unwrap(), "{name}");
    }
    assert!(double.lock().unwrap().uploads.is_empty());
    // Its own export is replaced, and what others wrote is not.
    store.export(&options).await.unwrap();
    let named = Destination::Bucket(bucket(&endpoint, "s3://b/rows.jsonl"));
    double.lock().unwrap().objects.insert("/b/rows.jsonl".to_owned(), b"mine".to_vec());
    let foreign = store.export(&Options { out: named.clone(), ..Options::default() }).await;
    assert!(matches!(foreign, Err(ExportError::Write(WriteError::Foreign { .. }))), "{foreign:?}");
    let forced = Options { out: named, overwrite: true, ..Options::default() };
    store.export(&forced).await.unwrap();
    let text = double.lock().unwrap().objects["/b/rows.jsonl"].clone();
    assert!(text.starts_with(b"{\"schema_version\":1"));
}

#[tokio::test]
async fn objects_are_called_what_the_files_of_a_folder_are() {
    let folder = tempfile::tempdir().unwrap();
    let told = [("a", Some("t:1"), None, vec![call(1, &[1, 2], &[&[3]])])];
    let store = stored(folder.path(), &told).await;
    let double = SharedTokens::default();
    let endpoint = serve(Arc::clone(&double)).await;
    let out = Destination::Bucket(bucket(&endpoint, "s3://b/~me/100%25"));
    let partition = Some(crate::Partition::Group);
    let options = Options { out, partition, ..Options::default() };
    let report = store.export(&options).await.unwrap();
    let expected = ["group=t%3A1/trajectories.parquet", "_forks.pq", "manifest.json"];
    let keys: Vec<_> = double.lock().unwrap().objects.keys().map(|key| decoded(key)).collect();
    let written = expected.into_iter().chain([crate::output::card::NAME]);
    let mut sorted: Vec<_> = written.map(|name| format!("/b/~me/100%/{name}")).collect();
    sorted.sort();
    assert_eq!(keys, sorted);
    let local = Options { out: folder.path().join("out").into(), partition, ..Options::default() };
    let local = store.export(&local).await.unwrap();
    let names = local.files.iter().map(|f| f.strip_prefix(folder.path().join("out")).unwrap());
    assert_eq!(names.collect::<Vec<_>>(), expected.map(FilePath::new));
    let shown: Vec<_> = report.files.iter().map(|f| f.to_string_lossy().into_owned()).collect();
    assert_eq!(shown, expected.map(|name| format!("s3://b/~me/100%/{name}")));
}

/// The key of an object, of the path of a request for it.
fn decoded(path: &str) -> String {
    format!("/{}", Path::from_url_path(path).unwrap())
}

#[tokio::test]
async fn long_files_are_sent_in_parts_and_show_when_they_are_whole() {
    let double = SharedTokens::default();
    let endpoint = serve(Arc::clone(&double)).await;
    let (store, path) = bucket(&endpoint, "s3://b/x").open().unwrap();
    let objects = ObjectTarget::new(store, path, "s3://b".to_owned());
    let bytes: Vec<u8> = (0..PART_BYTES * 2 + 100).map(|n| (n % 251) as u8).collect();
    let mut upload = objects.begin("long").await.unwrap();
    for part in bytes.chunks(5 << 20) {
        upload.put(part).await.unwrap();
    }
    assert_eq!(double.lock().unwrap().uploads["u1"].len(), 2);
    upload.finish().await.unwrap();
    assert_eq!(double.lock().unwrap().uploads["u1"].len(), 3);
    assert!(double.lock().unwrap().objects.is_empty());
    upload.publish().await.unwrap();
    assert_eq!(double.lock().unwrap().objects["/b/x/long"], bytes);
    let upload = objects.begin("other").await.unwrap();
    assert_eq!(double.lock().unwrap().uploads.len(), 1);
    upload.discard().await;
    assert!(double.lock().unwrap().uploads.is_empty());
}

#[tokio::test]
async fn what_the_store_refuses_is_told_and_shows_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let told = [("a", None, None, vec![call(1, &[1, 2], &[&[3]])])];
    let store = stored(folder.path(), &told).await;
    let double = SharedTokens::default();
    double.lock().unwrap().refuses = true;
    let endpoint = serve(Arc::clone(&double)).await;
    let out = Destination::Bucket(bucket(&endpoint, "s3://b/x"));
    let error = store.export(&Options { out, ..Options::default() }).await.unwrap_err();
    let ExportError::Write(WriteError::Io { path, .. }) = &error else { panic!("{error:?}") };
    // The list of files is the first that is written.
    assert_eq!(path, &PathBuf::from("s3://b/x/.manifest.json.begun"));
    assert!(double.lock().unwrap().objects.is_empty());
    let unknown = Destination::Bucket(bucket(&endpoint, "ftp://b/x"));
    let error = store.export(&Options { out: unknown, ..Options::default() }).await;
    assert!(matches!(error, Err(ExportError::Write(WriteError::Io { .. }))));
}
