//! Servers that lie, are silent, slow or busy, without a server and without waiting: the clock is
//! one of tokio's that jumps.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use object_store::PutPayload;
use object_store::client::HttpRequestBody;
use tokio::time::{Instant, Sleep, sleep};

use super::*;

const LIMIT: Duration = Duration::from_mins(1);

/// A body that claims some length and then sends pieces, one at a time, each after a pause. At the
/// end it is silent or over.
#[derive(Debug)]
struct Pieces {
    claim: u64,
    left: usize,
    bytes: usize,
    pause: Duration,
    is_endless: bool,
    clock: Option<Pin<Box<Sleep>>>,
}

impl Pieces {
    fn new(claim: u64, (pieces, bytes): (usize, usize), pause: Duration) -> Self {
        Self {
            claim,
            left: pieces,
            bytes,
            pause,
            is_endless: false,
            clock: None,
        }
    }

    fn endless(mut self) -> Self {
        self.is_endless = true;
        self
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        let Some(left) = this.left.checked_sub(1) else {
            return if this.is_endless {
                Poll::Pending
            } else {
                Poll::Ready(None)
            };
        };
        let pause = this.pause;
        ready!(
            this.clock
                .get_or_insert_with(|| Box::pin(sleep(pause)))
                .as_mut()
                .poll(context)
        );
        this.clock = None;
        this.left = left;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b'x'; this.bytes])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.claim)
    }
}

/// Behaviour of a server for one request.
#[derive(Debug)]
struct Turn {
    /// Time before it answers. Without an answer it is silent.
    thinks: Duration,
    answer: Option<http::Response<HttpResponseBody>>,
}

fn answer(status: u16, body: impl Into<HttpResponseBody>) -> Turn {
    let answer = http::Response::builder()
        .status(status)
        .body(body.into())
        .unwrap();
    Turn {
        thinks: Duration::ZERO,
        answer: Some(answer),
    }
}

fn busy(headers: &[(&str, &str)]) -> Turn {
    let mut turn = answer(503, String::from("SlowDown"));
    for (name, value) in headers {
        let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
        turn.answer
            .as_mut()
            .unwrap()
            .headers_mut()
            .insert(name, value.parse().unwrap());
    }
    turn
}

impl From<Pieces> for HttpResponseBody {
    fn from(pieces: Pieces) -> Self {
        Self::new(pieces)
    }
}

/// A server that does this with the requests, and notes when they came.
#[derive(Debug)]
struct Server {
    turns: Mutex<VecDeque<Turn>>,
    came: Arc<Mutex<Vec<Instant>>>,
}

#[async_trait]
impl HttpService for Server {
    async fn call(&self, _request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.came.lock().unwrap().push(Instant::now());
        let turn = self
            .turns
            .lock()
            .unwrap()
            .pop_front()
            .expect("no more requests");
        sleep(turn.thinks).await;
        match turn.answer {
            Some(answer) => Ok(answer),
            None => std::future::pending().await,
        }
    }
}

fn client(
    options: StoreOptions,
    turns: impl IntoIterator<Item = Turn>,
) -> (HttpClient, Arc<Mutex<Vec<Instant>>>) {
    let came = Arc::<Mutex<Vec<Instant>>>::default();
    let server = Server {
        turns: Mutex::new(turns.into_iter().collect()),
        came: Arc::clone(&came),
    };
    let server = HttpClient::new(server);
    (
        Connector::new(&options.timeout(LIMIT), Vec::new()).watch(server),
        came,
    )
}

fn get(range: Option<&str>) -> HttpRequest {
    let request = http::Request::get("http://127.0.0.1/x");
    let request = range
        .into_iter()
        .fold(request, |request, range| request.header("range", range));
    request.body(HttpRequestBody::empty()).unwrap()
}

fn put(bytes: usize) -> HttpRequest {
    let request = http::Request::put("http://127.0.0.1/x");
    request
        .body(PutPayload::from(vec![0; bytes]).into())
        .unwrap()
}

/// The virtual time that something takes.
async fn timed<T>(what: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    let done = what.await;
    (done, began.elapsed())
}

async fn collected(client: &HttpClient, request: HttpRequest) -> Result<Bytes, HttpError> {
    client.execute(request).await?.into_body().bytes().await
}

#[tokio::test(start_paused = true)]
async fn no_answer_claims_or_has_more_than_was_asked_for() {
    let claim = 99_999_999_999;
    let pieces = |count, bytes| Pieces::new(claim, (count, bytes), Duration::ZERO);
    let (client, _) = client(
        StoreOptions::default(),
        [
            answer(200, pieces(1, 10)),
            answer(200, pieces(33, 1 << 20)),
            answer(206, pieces(1, 10)),
            answer(206, pieces(1, 11)),
            answer(404, pieces(1, 10)),
            answer(500, pieces(1000, 1 << 20)),
            answer(500, vec![0xff; 3]),
        ],
    );
    let document = client.execute(get(None)).await.unwrap().into_body();
    assert_eq!(document.size_hint().lower(), 0);
    assert_eq!(document.bytes().await.unwrap().len(), 10);
    assert_eq!(
        collected(&client, get(None)).await.unwrap_err().kind(),
        HttpErrorKind::Decode
    );
    let range = client
        .execute(get(Some("bytes=5-14")))
        .await
        .unwrap()
        .into_body();
    assert_eq!(range.size_hint().lower(), 0);
    assert_eq!(range.bytes().await.unwrap().len(), 10);
    assert_eq!(
        collected(&client, get(Some("bytes=5-14")))
            .await
            .unwrap_err()
            .kind(),
        HttpErrorKind::Decode
    );
    // What is said of a refusal is cut, and is text; that it was refused is known all the same.
    for (status, length) in [(404, 10), (500, REFUSAL_BYTES), (500, 9)] {
        let answer = client.execute(get(None)).await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
        assert_eq!(answer.into_body().bytes().await.unwrap().len(), length);
    }
}

#[tokio::test(start_paused = true)]
async fn a_whole_file_is_not_taken_for_a_part_of_it() {
    for length in [10, 20] {
        let (client, _) = client(StoreOptions::default(), [answer(200, vec![0; length])]);
        let error = client.execute(get(Some("bytes=5-14"))).await.unwrap_err();
        let cause = std::error::Error::source(&error)
            .unwrap()
            .downcast_ref::<io::Error>()
            .unwrap();
        assert_eq!(cause.kind(), io::ErrorKind::Unsupported);
    }
}

#[tokio::test(start_paused = true)]
async fn only_two_answers_to_a_range_may_mean_a_short_object() {
    for (status, is_short) in [(200, true), (416, true), (403, false)] {
        let (client, _) = client(StoreOptions::default(), [answer(status, String::new())]);
        let error = client.execute(get(Some("bytes=5-14"))).await.unwrap_err();
        assert_eq!(may_be_too_short(&error), is_short, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_line_works_and_a_silent_server_is_given_up() {
    let nearly = Duration::from_secs(59);
    let slow = || Pieces::new(100, (10, 10), nearly);
    let silent = || Turn {
        answer: None,
        ..answer(200, Bytes::new())
    };
    let late = Turn {
        thinks: nearly,
        ..answer(200, Bytes::new())
    };
    let turns = [
        answer(200, slow()),
        answer(200, slow().endless()),
        silent(),
        late,
    ];
    let (client, _) = client(StoreOptions::default(), turns);
    let (got, time) = timed(collected(&client, get(None))).await;
    assert_eq!((got.unwrap().len(), time), (100, nearly * 10));
    let (got, time) = timed(collected(&client, get(None))).await;
    assert_eq!(
        (got.unwrap_err().kind(), time),
        (HttpErrorKind::Timeout, nearly * 10 + LIMIT)
    );
    let (got, time) = timed(collected(&client, get(None))).await;
    assert_eq!(
        (got.unwrap_err().kind(), time),
        (HttpErrorKind::Timeout, LIMIT)
    );
    collected(&client, get(None)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_upload_has_the_time_of_a_slow_line() {
    // At 20 kB/s they take 100 seconds.
    let bytes = 2_000_000;
    let slow = |seconds| Turn {
        thinks: Duration::from_secs(seconds),
        ..answer(200, Bytes::new())
    };
    let silent = || Turn {
        answer: None,
        ..slow(0)
    };
    let turns = [slow(159), silent(), silent(), slow(10), silent(), silent()];
    let (client, _) = client(StoreOptions::default(), turns);
    let (answer, time) = timed(client.execute(put(bytes))).await;
    assert_eq!(
        (answer.unwrap().status().as_u16(), time.as_secs()),
        (200, 159)
    );
    // Four times as long as the last one, and the limit for the answer.
    let (answer, time) = timed(client.execute(put(bytes))).await;
    assert_eq!(answer.unwrap_err().kind(), HttpErrorKind::Timeout);
    assert_eq!(time.as_secs(), 4 * 159 + 60);
    // After a timeout, the line may have become slower.
    let (answer, time) = timed(client.execute(put(bytes))).await;
    assert_eq!(answer.unwrap_err().kind(), HttpErrorKind::Timeout);
    assert_eq!(time.as_secs(), 100 + 60);
    let (answer, time) = timed(client.execute(put(bytes))).await;
    assert_eq!(
        (answer.unwrap().status().as_u16(), time.as_secs()),
        (200, 10)
    );
    let (answer, time) = timed(client.execute(put(bytes))).await;
    assert_eq!(answer.unwrap_err().kind(), HttpErrorKind::Timeout);
    assert_eq!(time.as_secs(), 4 * 10 + 60);
    // A request without a body does not wait longer.
    let (answer, time) = timed(client.execute(get(None))).await;
    assert_eq!(answer.unwrap_err().kind(), HttpErrorKind::Timeout);
    assert_eq!(time, LIMIT);
}

#[tokio::test(start_paused = true)]
async fn uploads_share_a_slow_line() {
    let slow = || Turn {
        thinks: Duration::from_secs(259),
        ..answer(200, Bytes::new())
    };
    let (client, _) = client(StoreOptions::default(), [slow(), slow()]);
    let both = [
        client.execute(put(2_000_000)),
        client.execute(put(2_000_000)),
    ];
    futures_util::future::try_join_all(both).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_left_alone_as_long_as_it_wants() {
    let later = [
        ("retry-after", "Thu, 01 Jan 2026 00:01:30 GMT"),
        ("date", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ];
    for (headers, pause) in [
        (&[("retry-after", "120")][..], 120),
        (&later, 90),
        (&[("retry-after", "86400")], 300),
        (&[("retry-after", "soon")], 0),
        (&[("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT")], 0),
        (&[], 0),
    ] {
        let (client, came) = client(
            StoreOptions::default(),
            [busy(headers), answer(200, Bytes::new())],
        );
        assert_eq!(
            client.execute(get(None)).await.unwrap().status().as_u16(),
            503
        );
        assert_eq!(
            client.execute(get(None)).await.unwrap().status().as_u16(),
            200
        );
        let came = came.lock().unwrap();
        assert_eq!(came[1] - came[0], Duration::from_secs(pause), "{headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_upload_is_repeated_and_nothing_else() {
    let turns = || [busy(&[]), busy(&[]), answer(200, Bytes::new())];
    for (is_end, status, requests) in [(true, 200, 3), (false, 503, 1)] {
        let (client, came) = client(StoreOptions::default(), turns());
        let put = client.execute(put(100));
        let answer = if is_end {
            COMPLETING.scope((), put).await
        } else {
            put.await
        };
        assert_eq!(answer.unwrap().status().as_u16(), status);
        assert_eq!(came.lock().unwrap().len(), requests, "{is_end}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_repeats_no_request_more_often_than_its_store() {
    let turns = || [busy(&[]), busy(&[]), answer(200, Bytes::new())];
    for (of_client, of_store) in [(2, None), (8, Some(2))] {
        let (client, came) = client(StoreOptions::default().attempts(of_client), turns());
        let put = COMPLETING.scope((), client.execute(put(100)));
        let answer = match of_store {
            Some(attempts) => ATTEMPTS.scope(attempts, put).await,
            None => put.await,
        };
        assert_eq!(answer.unwrap().status().as_u16(), 503);
        assert_eq!(came.lock().unwrap().len(), 2, "{of_client}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_download_says_nothing_about_uploads() {
    let silent = || Turn {
        answer: None,
        ..answer(200, Bytes::new())
    };
    let quick = Turn {
        thinks: Duration::from_secs(10),
        ..answer(200, Bytes::new())
    };
    let (client, _) = client(StoreOptions::default(), [quick, silent(), silent()]);
    client.execute(put(2_000_000)).await.unwrap();
    client.execute(get(None)).await.unwrap_err();
    // Four times as long as the last upload, and the limit for the answer.
    let (answer, time) = timed(client.execute(put(2_000_000))).await;
    answer.unwrap_err();
    assert_eq!(time.as_secs(), 4 * 10 + 60);
}

#[tokio::test(start_paused = true)]
async fn services_for_credentials_are_no_stores() {
    let came = Arc::<Mutex<Vec<Instant>>>::default();
    let mut dated = answer(200, Bytes::new());
    let date = "Thu, 01 Jan 2026 00:00:00 GMT".parse().unwrap();
    dated
        .answer
        .as_mut()
        .unwrap()
        .headers_mut()
        .insert("date", date);
    let turns = [busy(&[]), dated, answer(403, String::new()), busy(&[])].into();
    let server = HttpClient::new(Server {
        turns: Mutex::new(turns),
        came: Arc::clone(&came),
    });
    let connector = Connector::new(&StoreOptions::default().attempts(2), Vec::new());
    let purpose = Purpose::Credentials {
        is_configured: true,
        works_without_token: false,
    };
    let asking = connector.for_credentials(purpose, None);
    let [credentials, objects] = [asking, connector.clone()].map(|made| made.watch(server.clone()));
    // The request is repeated, and the clock of the service is not that of the store.
    let status = credentials.execute(get(None)).await.unwrap().status();
    assert_eq!(status.as_u16(), 200);
    assert_eq!(
        (came.lock().unwrap().len(), *lock(&connector.date)),
        (2, None)
    );
    let refused = credentials.execute(get(None)).await.unwrap_err();
    assert!(
        Refusal::of(&refused).is_some_and(|refusal| refusal.meaning == Meaning::NotGiven),
        "{refused:?}"
    );
    let status = objects.execute(get(None)).await.unwrap().status();
    assert_eq!(status.as_u16(), 503);
}

#[tokio::test(start_paused = true)]
async fn no_more_bytes_per_second_than_are_allowed() {
    let options = StoreOptions::default().max_rate(Some(1000));
    let body = || Pieces::new(10_000, (10, 1000), Duration::ZERO);
    let (client, _) = client(
        options,
        [
            answer(200, body()),
            answer(200, body()),
            answer(200, Bytes::new()),
            answer(200, Bytes::new()),
        ],
    );
    let (got, time) = timed(async {
        let both = [collected(&client, get(None)), collected(&client, get(None))];
        futures_util::future::try_join_all(both).await
    })
    .await;
    let got = got.unwrap();
    assert_eq!(got.iter().map(Bytes::len).sum::<usize>(), 20_000);
    assert_eq!(time.as_secs(), 20);
    // What goes is counted with what comes.
    let ((), time) = timed(async {
        client.execute(put(5000)).await.unwrap();
        client.execute(put(5000)).await.unwrap();
    })
    .await;
    assert_eq!(time.as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_has_its_meaning_and_the_server_s_words() {
    let xml = |code: &str| format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
    let meaning = async |request: HttpRequest, turn: Turn| {
        let (client, _) = client(StoreOptions::default(), [turn]);
        client
            .execute(request)
            .await
            .map_err(|error| Refusal::of(&error).unwrap().to_string())
    };
    let refused = meaning(get(None), answer(400, xml("ExpiredToken")))
        .await
        .unwrap_err();
    assert!(
        refused.contains("have expired: HTTP 400 ExpiredToken no"),
        "{refused}"
    );
    let mut moved = answer(301, String::new());
    moved
        .answer
        .as_mut()
        .unwrap()
        .headers_mut()
        .insert("x-amz-bucket-region", "eu-west-3".parse().unwrap());
    let refused = meaning(get(None), moved).await.unwrap_err();
    assert!(
        refused.contains("another region") && refused.contains("its region is eu-west-3"),
        "{refused}"
    );
    let mut conditional = put(1);
    conditional
        .headers_mut()
        .insert("if-none-match", "*".parse().unwrap());
    let refused = meaning(conditional, answer(501, xml("NotImplemented")))
        .await
        .unwrap_err();
    assert!(refused.contains("If-None-Match"), "{refused}");
    // What the text of another failure says is not its status.
    let other = meaning(get(None), answer(500, String::from("status code: 403 ")))
        .await
        .unwrap();
    assert_eq!(other.status().as_u16(), 500);
}
