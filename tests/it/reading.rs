//! What people read of a recording: the viewer on what the real engine and the proxy recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use exporter::health_of;
use kit::{World, post, start_engine};
use serde_json::{Value, json};
use store::{Lending, Loan, NoRoom, ReadingRoom, Selection};
use viewer::{Answer, EventReader, TokenTexts, View, ViewError, Viewer};

/// The tokenizer of the engine's model.
const TOKENIZER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/models/tiny/tokenizer.json");

fn viewer(world: &World) -> Viewer {
    let texts = TokenTexts::read(TOKENIZER.as_ref()).unwrap();
    Viewer::new(world.store().into(), Some(texts))
}

async fn ask(
    viewer: &Viewer,
    view: View,
    id: &str,
    parameters: &[(&str, &str)],
) -> Result<Value, ViewError> {
    let owned = parameters.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let owned: Vec<(String, String)> = owned.collect();
    match viewer.answer(view, id, &owned).await? {
        Answer::Document(text) => Ok(serde_json::from_slice(&text).unwrap()),
        Answer::Body(body) => Ok(json!(String::from_utf8(body.to_vec()).unwrap())),
    }
}

/// Turns of a chat, each with the answer of the one before in its history; the messages so far.
async fn talk(world: &World, episode: &str, said: &[&str]) -> Vec<Value> {
    let path = format!("/e/{episode}/v1/chat/completions");
    let mut messages = Vec::new();
    for text in said {
        messages.push(json!({ "role": "user", "content": text }));
        let body = json!({ "model": "tiny", "messages": messages, "seed": 1, "max_tokens": 8 });
        let reply = post(world.data, &path, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        messages.push(wire::answers(episode::Route::Chat, &reply.body).remove(0).message);
    }
    messages
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_is_read_as_turns_messages_and_tokens() {
    let world = World::start(start_engine().await).await;
    let messages = talk(&world, "run", &["One Grüße", "Two", "Three"]).await;
    // A fork: the second message is another one.
    let forked =
        [messages[0].clone(), messages[1].clone(), json!({"role":"user","content":"Else"})];
    let body = json!({ "model": "tiny", "messages": forked, "max_tokens": 4 });
    post(world.data, "/e/run/v1/chat/completions", &body.to_string()).await;
    post(world.control, "/episodes/run/rewards", r#"{"value":0.5}"#).await;
    let viewer = viewer(&world);

    let tree = ask(&viewer, View::Tree, "run", &[]).await.unwrap();
    assert_eq!((&tree["verdict"], &tree["trajectories"]), (&json!("exact"), &json!(2)));
    let reward = &tree["rewards"][0];
    assert_eq!((&reward["value"], &reward["given_by"]), (&json!(0.5), &json!("control_open")));
    assert_eq!((&reward["given_from"], &reward["key_name"]), (&json!("127.0.0.1"), &Value::Null));
    let digest = reward["over_chain"].as_str().map(str::len);
    assert_eq!((&reward["over_calls"], digest), (&json!(4), Some(32)));
    let turns = tree["turns"].as_array().unwrap();
    let parents: Vec<&Value> = turns.iter().map(|turn| &turn["parent"]["call_id"]).collect();
    assert_eq!(parents[1..], [&turns[0]["call_id"], &turns[1]["call_id"], &turns[0]["call_id"]]);
    let new: Vec<_> = turns.iter().map(|turn| (&turn["new_from"], &turn["messages"])).collect();
    let expected = [(0, 1), (2, 3), (4, 5), (2, 3)].map(|(from, all)| (json!(from), json!(all)));
    assert!(new.iter().zip(&expected).all(|(a, b)| (a.0, a.1) == (&b.0, &b.1)), "{new:?}");
    assert_eq!((&turns[3]["kind"], &turns[3]["heard"]), (&json!("fork"), &json!("user: Else")));
    assert_eq!(tree["forks"].as_array().unwrap().len(), 1);

    let id = turns[2]["call_id"].as_str().unwrap();
    let call = ask(&viewer, View::Call, id, &[]).await.unwrap();
    assert_eq!(call["messages"][4], json!({ "role": "user", "content": "Three" }));
    assert_eq!(call["choices"][0]["message"], messages[5]);
    let request = ask(&viewer, View::Request, id, &[]).await.unwrap();
    assert_eq!(call["request_bytes"], request.as_str().unwrap().len());

    let mut snapshot = world.snapshot().await;
    let attempt = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
    let rows = viewer::messages(&mut snapshot, &attempt).await.unwrap();
    let said = rows.iter().map(|row| (row.position, row.choice.is_some()));
    let once = [(0, false), (1, true), (2, false), (3, true), (4, false), (5, true)];
    let fork = [(2, false), (3, true)];
    assert_eq!(said.collect::<Vec<_>>(), [&once[..], &fork].concat(), "each where it was first");
    assert_eq!(rows[4].content.as_deref(), Some("Three"));

    let tokens = ask(&viewer, View::Tokens, id, &[]).await.unwrap();
    let prompt = tokens["prompt_tokens"].as_u64().unwrap() as usize;
    let texts: Vec<&str> =
        tokens["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(texts[..prompt].concat().contains("One Grüße"), "{texts:?}");
    let is_trained = |at: usize| tokens["mask"][at] == 1 && tokens["logprobs"][at].is_number();
    assert!((0..texts.len()).all(|at| is_trained(at) == (at >= prompt)));
    let part = ask(&viewer, View::Tokens, id, &[("from", "3"), ("count", "4")]).await.unwrap();
    assert_eq!(part["ids"].as_array().unwrap()[..], tokens["ids"].as_array().unwrap()[3..7]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_names_its_source_and_what_was_given_again() {
    let world = World::start(start_engine().await).await;
    talk(&world, "run", &["One", "Two", "Three"]).await;
    for (attempt, until) in [(0, 2), (1, 2), (2, 1)] {
        let replay = json!({ "episode_id": "run", "until": until });
        let told = json!({ "episode_id": "branch", "attempt": attempt, "replay": replay });
        assert_eq!(post(world.control, "/episodes", &told.to_string()).await.status, 200);
    }
    talk(&world, "branch", &["One", "Two", "Else"]).await;
    post(world.control, "/episodes/branch/rewards?attempt=1", r#"{"value":0.5}"#).await;
    let viewer = viewer(&world);

    let tree = ask(&viewer, View::Tree, "branch", &[("attempt", "0")]).await.unwrap();
    let source = json!({ "episode_id": "run", "attempt": 0, "until": 2, "mode": "strict" });
    assert_eq!(tree["episode"]["replay"], source);
    let sibling = json!(
        { "episode_id": "branch", "attempt": 1, "until": 2, "state": "open", "reward": 0.5 }
    );
    assert_eq!(tree["siblings"], json!([sibling]), "the third one left at another turn");
    assert_eq!(tree["replays"], json!([]));

    let of_source = ask(&viewer, View::Tree, "run", &[]).await.unwrap();
    assert_eq!(
        (&of_source["episode"]["replay"], &of_source["siblings"]),
        (&json!(null), &json!([]))
    );
    let branches = of_source["replays"].as_array().unwrap();
    let told: Vec<_> = branches.iter().map(|one| (&one["attempt"], &one["until"])).collect();
    let known = [(json!(0), json!(2)), (json!(1), json!(2)), (json!(2), json!(1))];
    assert_eq!(told, known.each_ref().map(|(attempt, until)| (attempt, until)));
    let turns = tree["turns"].as_array().unwrap();
    let own: Vec<&Value> = turns.iter().map(|turn| &turn["replayed"]).collect();
    let recorded = of_source["turns"].as_array().unwrap();
    assert_eq!(own, [&recorded[0]["call_id"], &recorded[1]["call_id"], &json!(null)]);
    for turn in &turns[..2] {
        assert_eq!((&turn["sampled_tokens"], &turn["mean_logprob"]), (&json!(0), &json!(null)));
    }
    assert_eq!(tree["sampled_tokens"], turns[2]["sampled_tokens"]);

    let id = turns[0]["call_id"].as_str().unwrap();
    let call = ask(&viewer, View::Call, id, &[]).await.unwrap();
    assert_eq!(call["replayed"], recorded[0]["call_id"]);
    let list = ask(&viewer, View::Episodes, "", &[("episode", "branch")]).await.unwrap();
    let until: Vec<&Value> =
        list["episodes"].as_array().unwrap().iter().map(|one| &one["replay"]["until"]).collect();
    assert_eq!(until, [&json!(1), &json!(2), &json!(2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_with_messages_has_each_of_them_once() {
    let world = World::start(start_engine().await).await;
    let messages = talk(&world, "run", &["One", "Two", "Three"]).await;
    let forked = [messages[0].clone(), messages[1].clone(), json!({"role":"user","content":"No"})];
    let body = json!({ "model": "tiny", "messages": forked, "max_tokens": 4 });
    post(world.data, "/e/run/v1/chat/completions", &body.to_string()).await;
    let viewer = viewer(&world);

    let tree = ask(&viewer, View::Tree, "run", &[("messages", "1")]).await.unwrap();
    let short = ask(&viewer, View::Tree, "run", &[]).await.unwrap();
    assert_eq!((&short["turns"], &short["calls"]), (&tree["turns"], &Value::Null));
    let calls = tree["calls"].as_array().unwrap();
    let turns = tree["turns"].as_array().unwrap();
    assert_eq!((calls.len(), turns.len()), (4, 4));
    for (call, turn) in calls.iter().zip(turns) {
        let id = turn["call_id"].as_str().unwrap();
        let alone = ask(&viewer, View::Call, id, &[]).await.unwrap();
        let new =
            &alone["messages"].as_array().unwrap()[turn["new_from"].as_u64().unwrap() as usize..];
        assert_eq!(call["messages"].as_array().unwrap()[..], *new);
        assert_eq!(call["messages"].as_array().unwrap().len(), 1, "what the user said");
        assert_eq!((&call["choices"], &call["call_id"]), (&alone["choices"], &turn["call_id"]));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_goes_on_where_a_page_ended() {
    let world = World::start(start_engine().await).await;
    for name in ["a", "b", "c"] {
        let announced = format!(r#"{{"episode_id":"{name}","group_id":"g-{name}"}}"#);
        post(world.control, "/episodes", &announced).await;
    }
    let viewer = viewer(&world);
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let part = [("limit", "2"), ("cursor", cursor.as_str())];
        let page = ask(&viewer, View::Episodes, "", &part).await.unwrap();
        assert_eq!((&page["total"], &page["total_is_least"]), (&json!(3), &json!(false)));
        let found = page["episodes"].as_array().unwrap().iter();
        names.extend(found.map(|one| one["episode_id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(names, ["c", "b", "a"]);

    for wrong in [[("cursor", "7.1"), ("sort", "name")], [("cursor", "x"), ("sort", "opened")]] {
        let refused = ask(&viewer, View::Episodes, "", &wrong).await;
        assert!(matches!(refused, Err(ViewError::Parameter(_))), "{refused:?}");
    }
    let one = ask(&viewer, View::Groups, "", &[("group", "g-b")]).await.unwrap();
    assert_eq!((&one["total"], &one["groups"][0]["group_id"]), (&json!(1), &json!("g-b")));
    let by_name = ask(&viewer, View::Groups, "", &[("sort", "name")]).await.unwrap();
    assert_eq!(by_name["groups"][0]["group_id"], "g-a");
    let one = ask(&viewer, View::Episodes, "", &[("episode", "b")]).await.unwrap();
    assert_eq!((&one["total"], &one["episodes"][0]["episode_id"]), (&json!(1), &json!("b")));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_episodes_are_listed_counted_and_searched() {
    let world = World::start(start_engine().await).await;
    for (name, reward) in [("a", "1"), ("b", "0"), ("c", "null")] {
        let announced =
            format!(r#"{{"episode_id":"{name}","group_id":"g","group_size":3,"task_id":"t"}}"#);
        post(world.control, "/episodes", &announced).await;
        talk(&world, name, &[&format!("The word is Zebra-{name}")]).await;
        let body = format!(r#"{{"value":{reward}}}"#);
        post(world.control, &format!("/episodes/{name}/rewards"), &body).await;
    }
    let viewer = viewer(&world);

    let list = ask(&viewer, View::Episodes, "", &[("sort", "-reward")]).await.unwrap();
    let names: Vec<_> = list["episodes"].as_array().unwrap().iter().collect();
    assert_eq!(names.iter().map(|e| &e["episode_id"]).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!((&list["total"], &names[0]["state"]), (&json!(3), &json!("open")));

    let groups = ask(&viewer, View::Groups, "", &[]).await.unwrap();
    let group = &groups["groups"][0];
    assert_eq!(
        (&group["size"], &group["scored"], &group["mean"]),
        (&json!(3), &json!(2), &json!(0.5))
    );
    assert!((group["std"].as_f64().unwrap() - 0.5f64.sqrt()).abs() < 1e-12);

    let stats = ask(&viewer, View::Stats, "", &[("buckets", "3"), ("group", "g")]).await.unwrap();
    assert_eq!((&stats["totals"]["calls"], &stats["outcomes"]["complete"]), (&json!(3), &json!(3)));
    let in_buckets: u64 =
        stats["buckets"].as_array().unwrap().iter().map(|b| b["calls"].as_u64().unwrap()).sum();
    assert_eq!(in_buckets, 3);
    assert_eq!(stats["versions"][0]["solved"], 0.5);

    let found = ask(&viewer, View::Search, "", &[("q", "zebra-B")]).await.unwrap();
    let hits = found["hits"].as_array().unwrap();
    assert_eq!((hits.len(), &hits[0]["match"]), (1, &json!("Zebra-b")));
    assert_eq!((&found["searched"], &found["next"]), (&json!(3), &Value::Null));
    let part = ask(&viewer, View::Search, "", &[("q", "zebra"), ("limit", "1")]).await.unwrap();
    let next = part["next"].as_str().unwrap();
    assert_eq!(part["hits"][0]["episode_id"], "c", "the newest first");
    let rest = ask(&viewer, View::Search, "", &[("q", "zebra"), ("cursor", next)]).await.unwrap();
    assert_eq!(rest["hits"].as_array().unwrap().len(), 2);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_tells_what_was_asked_answered_and_went_wrong() {
    let world = World::start(start_engine().await).await;
    let messages = talk(&world, "good", &["Find\n  the number", "Once more"]).await;
    talk(&world, "bad", &["<system-reminder>Test.</system-reminder>\nMend it"]).await;
    let wrong = json!({ "model": "tiny", "messages": messages, "temperature": -1 });
    let declined = post(world.data, "/e/bad/v1/chat/completions", &wrong.to_string()).await;
    assert_eq!(declined.status, 400, "{}", declined.text());
    let viewer = viewer(&world);

    let order = ("sort", "-name");
    let list = ask(&viewer, View::Episodes, "", &[order, ("text", "1")]).await.unwrap();
    let (good, bad) = (&list["episodes"][0], &list["episodes"][1]);
    assert_eq!(
        (&good["first_prompt"], &good["last_error"]),
        (&json!("Find the number"), &Value::Null)
    );
    let said = wire::content_text(messages[3].get("content")).unwrap_or_default();
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.is_empty() || good["last_answer"] == json!(words), "{good}");
    assert!(good["last_answer"].is_string());
    assert_eq!(bad["first_prompt"], "Mend it");
    let error = bad["last_error"].as_str().unwrap();
    assert!(error.starts_with("400: ") && error.contains("temperature"), "{error}");
    assert!(bad["last_answer"].is_string(), "what was answered before");

    let short = ask(&viewer, View::Episodes, "", &[order]).await.unwrap();
    assert_eq!(short["episodes"][1]["last_error"], Value::Null);
    assert_eq!(short["episodes"][1]["calls"], bad["calls"]);
    world.stop().await;
}

/// Room for so many attempts, and none for more.
#[derive(Debug)]
struct RoomFor(AtomicUsize);

impl ReadingRoom for RoomFor {
    fn bytes_max(&self) -> u64 {
        1 << 30
    }

    fn lend(&self, _: u64) -> Lending<'_> {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        Box::pin(async move { (left > 0).then(|| Box::new(()) as Loan).ok_or(NoRoom::TooLarge) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_judged_as_far_as_there_is_room_and_time() {
    let world = World::start(start_engine().await).await;
    for name in ["old", "middle", "new"] {
        talk(&world, name, &["Hello"]).await;
        post(world.control, &format!("/episodes/{name}/close"), "{}").await;
    }
    let read = |judged: &Value| (judged["attempts"].clone(), judged["unread"].clone());
    let newest = &[("limit", "2")];

    let judged = ask(&viewer(&world), View::Checks, "", newest).await.unwrap();
    assert_eq!((read(&judged), &judged["total"]), ((json!(2), json!(0)), &json!(3)));
    assert_eq!((judged["checks"].as_array().unwrap().len(), &judged["calls"]), (30, &json!(2)));
    let named = ask(&viewer(&world), View::Checks, "", &[("episode", "old")]).await.unwrap();
    assert_eq!((read(&named), &named["total"]), ((json!(1), json!(0)), &json!(1)));

    let narrow = viewer(&world).in_room(Arc::new(RoomFor(1.into())));
    let judged = ask(&narrow, View::Checks, "", newest).await.unwrap();
    assert_eq!(read(&judged), (json!(1), json!(1)));
    let full = viewer(&world).in_room(Arc::new(RoomFor(0.into())));
    let judged = ask(&full, View::Checks, "", &[]).await.unwrap();
    assert_eq!((read(&judged), &judged["verdict"]), ((json!(0), json!(3)), &json!("no evidence")));

    let mut snapshot = world.snapshot().await;
    let all = snapshot.episodes(&Selection::default()).await.unwrap();
    let keys: Vec<i64> = all.iter().map(|attempt| attempt.key).collect();
    let mut turns = [true, true, false].into_iter();
    let report = health_of(&mut snapshot, &keys, || turns.next().unwrap()).await.unwrap();
    assert_eq!((report.attempts, report.unread), (2, 1));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_counted_for_a_sampler() {
    let world = World::start(start_engine().await).await;
    for (name, reward) in [("a", "1"), ("b", "0"), ("c", "null")] {
        let announced = format!(r#"{{"episode_id":"{name}","task_id":"t"}}"#);
        post(world.control, "/episodes", &announced).await;
        talk(&world, name, &["Hello"]).await;
        let body = format!(r#"{{"value":{reward}}}"#);
        post(world.control, &format!("/episodes/{name}/rewards"), &body).await;
    }
    post(world.control, "/episodes", r#"{"episode_id":"d","task_id":"u"}"#).await;
    post(world.control, "/episodes/d/rewards", r#"{"value":0}"#).await;
    post(world.control, "/episodes/d/close", r#"{"status":"infrastructure_failed"}"#).await;

    let viewer = viewer(&world);
    let tasks = ask(&viewer, View::Tasks, "", &[]).await.unwrap();
    let fields = ["task_id", "tries", "scored", "mean", "pass_rate", "infrastructure_failed"];
    let of = |at: usize| fields.map(|field| tasks["tasks"][at][field].clone());
    assert_eq!(of(0), [json!("t"), json!(3), json!(2), json!(0.5), json!(0.5), json!(0)]);
    assert_eq!(of(1), [json!("u"), json!(1), json!(0), json!(null), json!(null), json!(1)]);
    assert_eq!(tasks["tasks"][0]["last_version"], json!({ "label": "default", "number": 0 }));
    assert_eq!(tasks["tasks"][1]["last_version"], Value::Null);
    let easy = [("name", "T"), ("solved_at", "0")];
    let easy = ask(&viewer, View::Tasks, "", &easy).await.unwrap();
    assert_eq!((&easy["total"], &easy["tasks"][0]["pass_rate"]), (&json!(1), &json!(1.0)));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_events_has_what_happens_after_it_began() {
    let world = World::start(start_engine().await).await;
    talk(&world, "before", &["Hello"]).await;
    let parameters = [("text".to_owned(), "1".to_owned())];
    let mut events = EventReader::new(viewer(&world), &parameters).unwrap();
    let one = [("episode".to_owned(), "other".to_owned())];
    let mut others = EventReader::new(viewer(&world), &one).unwrap();
    assert!(events.look().await.unwrap().is_empty() && others.look().await.unwrap().is_empty());

    talk(&world, "now", &["Hello you"]).await;
    post(world.control, "/episodes/now/rewards", r#"{"value":1}"#).await;
    post(world.control, "/episodes/now/close", "").await;
    let found = events.look().await.unwrap();
    let kinds: Vec<&str> = found.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, ["call", "reward", "episode"], "{found:?}");
    let call: Value = serde_json::from_str(&found[0].1).unwrap();
    assert_eq!((&call["outcome"], &call["heard"]), (&json!("complete"), &json!("user: Hello you")));
    assert!(events.look().await.unwrap().is_empty() && others.look().await.unwrap().is_empty());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_without_an_answer_says_why() {
    let world = World::start(start_engine().await).await;
    talk(&world, "run", &["Hello"]).await;
    let viewer = viewer(&world);
    let call = "01a20be7-f5db-760b-9c61-a79dc31d40bf";
    for (view, id, parameters, why) in [
        (View::Tree, "none", ("attempt", ""), "no episode `none`"),
        (View::Tree, "run", ("attempt", "3"), "no episode `run` attempt 3"),
        (View::Tree, "a b", ("attempt", ""), "no episode `a b`"),
        (View::Call, call, ("", ""), "no call `01a20be7"),
        (View::Call, "x", ("", ""), "no call `x`"),
        (View::Episodes, "", ("sort", "size"), "`sort` is not one of opened, closed,"),
        (View::Episodes, "", ("limit", "0"), "`limit` is not 1 to 1000"),
        (View::Episodes, "", ("label", "x"), "`label` is not NAME=VALUE: x"),
        (View::Episodes, "", ("state", "gone"), "`state` is not one of open, closed, completed"),
        (View::Episodes, "", ("since", "NaN"), "`since` is not a finite number"),
        (View::Search, "", ("q", ""), "`q` is a text of 1 to 1024 bytes"),
        (View::Stats, "", ("buckets", "9999"), "`buckets` is not 1 to 500"),
        (View::Groups, "", ("label", "a=b"), "`label` is not a parameter of this view"),
        (View::Checks, "", ("limit", "0"), "`limit` is not 1 to 10000"),
        (View::Audit, "", ("attempt", "1"), "`attempt` is not a parameter of this view"),
    ] {
        let parameters: &[_] = if parameters.0.is_empty() { &[] } else { &[parameters] };
        let said = ask(&viewer, view, id, parameters).await.unwrap_err().to_string();
        assert!(said.starts_with(why), "{said}");
    }
    world.stop().await;
}
