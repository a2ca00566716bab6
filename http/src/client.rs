//! Clients: how they connect, and the pool that keeps their connections.

pub mod socket;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hyper::body::Body;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::net::UnixStream;
use tower::ServiceExt;
use tower::util::{BoxCloneSyncService, service_fn};

use crate::bounds::{HEADERS_MAX, REPLY_HEAD_BYTES_MAX};

/// Finds the addresses of a host.
type Resolver = BoxCloneSyncService<Name, std::vec::IntoIter<SocketAddr>, io::Error>;
type TcpConnector = HttpConnector<Resolver>;
type SocketConnector = BoxCloneSyncService<hyper::Uri, TokioIo<UnixStream>, io::Error>;

/// A pool of connections to `http` URLs.
pub type HttpClient<B> = Client<TcpConnector, B>;
/// A pool of connections to `https` and `http` URLs.
pub type HttpsClient<B> = Client<HttpsConnector<TcpConnector>, B>;
/// A pool of connections to the URLs of [`socket`].
pub type SocketClient<B> = Client<SocketConnector, B>;

/// The settings of a client.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClientOptions {
    /// The address that all connections go to. If there is none, the system finds the host's.
    pub address: Option<IpAddr>,
    /// Longest wait for a connection, if not the system's.
    pub connect_wait: Option<Duration>,
    /// Time after which an idle connection is closed. If there is none, it is only not used again
    /// after 90 seconds.
    pub idle_wait: Option<Duration>,
    /// The versions of HTTP that are spoken.
    pub versions: Versions,
}

/// Versions of HTTP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Versions {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 if TLS negotiates it, else HTTP/1.1.
    Negotiated,
    /// HTTP/2, also without TLS.
    Http2,
}

/// A client of `http` URLs, without connections yet.
pub fn http<B: Body<Data: Send> + Send>(options: &ClientOptions) -> HttpClient<B> {
    pool(tcp_connector(options), options)
}

/// A client of `https` and `http` URLs, without connections yet.
pub fn https<B: Body<Data: Send> + Send>(
    tls: &ClientConfig,
    options: &ClientOptions,
) -> HttpsClient<B> {
    let (mut tcp, mut tls) = (tcp_connector(options), tls.clone());
    tcp.enforce_http(false);
    if options.versions != Versions::Http1 {
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    }
    pool(HttpsConnector::from((tcp, tls)), options)
}

/// A client of sockets in the file system, without connections yet.
pub fn sockets<B: Body<Data: Send> + Send>(options: &ClientOptions) -> SocketClient<B> {
    pool(BoxCloneSyncService::new(service_fn(socket::connect)), options)
}

fn tcp_connector(options: &ClientOptions) -> TcpConnector {
    let mut tcp = HttpConnector::new_with_resolver(resolver(options.address));
    // With Nagle's algorithm the second small write of a request waits 40 ms for a delayed ACK.
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(options.connect_wait);
    tcp
}

fn resolver(address: Option<IpAddr>) -> Resolver {
    let Some(address) = address else {
        let system = GaiResolver::new();
        return Resolver::new(system.map_response(|found| Vec::from_iter(found).into_iter()));
    };
    // The port is that of the URL.
    let chosen = vec![SocketAddr::new(address, 0)].into_iter();
    Resolver::new(service_fn(move |_| std::future::ready(Ok(chosen.clone()))))
}

fn pool<C, B>(connector: C, options: &ClientOptions) -> Client<C, B>
where
    C: Connect + Clone,
    B: Body<Data: Send> + Send,
{
    let mut client = Client::builder(TokioExecutor::new());
    client.http2_only(options.versions == Versions::Http2);
    client.http1_preserve_header_case(true).http1_max_headers(HEADERS_MAX);
    client.http2_max_header_list_size(REPLY_HEAD_BYTES_MAX);
    // RFC 9112, section 5.1: a proxy removes the space before a colon from a reply.
    client.http1_allow_spaces_after_header_name_in_responses(true);
    client.timer(TokioTimer::new());
    if let Some(wait) = options.idle_wait {
        client.pool_idle_timeout(wait).pool_timer(TokioTimer::new());
    }
    client.build(connector)
}
