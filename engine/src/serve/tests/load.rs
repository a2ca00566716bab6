//! Many calls at once.

use super::*;

#[tokio::test]
async fn a_seed_gives_the_same_tokens_whatever_else_runs() {
    let server = Server::plain().await;
    let asked = json!({"max_tokens": 16, "ignore_eos": true, "return_token_ids": true,
        "logprobs": 3});
    let alone = server.text(asked.clone()).await.json()["choices"].clone();
    let crowd = (0..8).map(|i| server.text(json!({"prompt": [i, 7], "max_tokens": 40, "seed": i})));
    let crowd = futures_join(crowd.collect());
    let (again, _) = tokio::join!(server.text(asked.clone()), crowd);
    assert_eq!(again.json()["choices"], alone);
    // Children of a seeded call have the seeds that follow.
    let two = server.text(merged(asked.clone(), json!({"n": 2}))).await.json();
    let next = server.text(merged(asked, json!({"seed": 6}))).await.json();
    assert_eq!(two["choices"][0]["token_ids"], alone[0]["token_ids"]);
    assert_eq!(two["choices"][1]["token_ids"], next["choices"][0]["token_ids"]);
    server.stop().await;
}

async fn futures_join<F: Future<Output = Answer>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[tokio::test]
async fn a_full_queue_is_429_and_a_lost_client_frees_its_place() {
    let options = EngineOptions { max_num_seqs: 1, max_queue: 1, ..EngineOptions::default() };
    let server = Server::start(options).await;
    let long = json!({"prompt": [1], "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let body = long.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut holders = Vec::new();
    // Holders never read, and leave; the one that runs is replaced by the next.
    let mut refused = None;
    for _ in 0..200 {
        let mut holder = TcpStream::connect(server.address).await.unwrap();
        holder.write_all(head.as_bytes()).await.unwrap();
        holders.push(holder);
        let answer = server.text(json!({"max_tokens": 1})).await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.unwrap();
    // By the pace of the machine.
    let (_, after) = refused.head.split_once("retry-after: ").unwrap();
    let seconds = after.lines().next().unwrap().parse::<u64>().unwrap();
    assert!((1..60).contains(&seconds), "{seconds}");
    assert_eq!(refused.json()["error"]["code"], 429);
    drop(holders);
    for _ in 0..2000 {
        if server.text(json!({"max_tokens": 1})).await.status == 200 {
            return server.stop().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the place was not freed");
}
