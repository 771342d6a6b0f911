import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * The Java client's side of the matrix (tests/compat/matrix): senders and readers of several features in one process.
 * Arguments and lines are those that tests/compat/matrix/programs.py describes. Uses only what RocketMQ 4.9 has, apart from
 * timers, so that one build runs on every version.
 */
public final class MatrixClient {
  private static final long REQUEST_TIMEOUT_MS = 20_000;
  /** How long a request for a route may take: a start fails if the first one does, as on a machine that is busy. */
  private static final int ROUTE_TIMEOUT_MS =
      Integer.parseInt(System.getenv().getOrDefault("RAFTMQ_MATRIX_ROUTE_TIMEOUT_MS", "3000"));
  private static final String SECRET = System.getenv().getOrDefault("RAFTMQ_MATRIX_SECRET", "");
  private final String servers;
  private final String prefix;
  private final double rate;
  private final List<DefaultMQProducer> producers = new ArrayList<>();
  private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
  private volatile boolean stopped = false;

  public static void main(String[] args) throws Exception {
    MatrixClient client = new MatrixClient(args[1], args[2], Double.parseDouble(args[3]));
    if (args[0].equals("orphans")) {
      client.leaveOrphans();
    } else {
      client.run(List.of(args).subList(4, args.length));
    }
    System.exit(0);
  }

  private MatrixClient(String servers, String prefix, double rate) {
    this.servers = servers;
    this.prefix = prefix;
    this.rate = rate;
  }

  private static synchronized void say(String event, Object... fields) {
    StringBuilder line = new StringBuilder("{\"event\":\"").append(event).append('"');
    for (int at = 0; at < fields.length; at += 2) {
      Object value = fields[at + 1];
      line.append(",\"").append(fields[at]).append("\":");
      line.append(value instanceof Number || value == null ? String.valueOf(value) : quoted(value.toString()));
    }
    System.out.println(line.append('}'));
  }

  private static String quoted(String text) {
    return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\s+", " ") + '"';
  }

  private static double now() {
    return System.currentTimeMillis() / 1000.0;
  }

  /** Ends when its input does; the line "stop" ends the sending. */
  private void run(List<String> features) throws Exception {
    for (String feature : features) {
      startReaders(feature);
    }
    List<Thread> senders = new ArrayList<>();
    for (String feature : features) {
      DefaultMQProducer producer = startProducer(feature);
      senders.add(new Thread(() -> sendAll(feature, producer), feature));
    }
    say("ready");
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      if (line.equals("go")) {
        senders.forEach(Thread::start);
      } else {
        stopped = true;
        for (Thread sender : senders) {
          sender.join();
        }
        say("stopped");
      }
    }
    consumers.forEach(DefaultMQPushConsumer::shutdown);
    producers.forEach(DefaultMQProducer::shutdown);
    say("done");
  }

  /** Half messages that nobody decides: whoever started this process kills it. */
  private void leaveOrphans() throws Exception {
    TransactionMQProducer producer = (TransactionMQProducer) startProducer("transaction");
    for (int number = 0; number < rate; number++) {
      String key = "orphan-" + number;
      double started = now();
      try {
        producer.sendMessageInTransaction(build("transaction", number, key), LocalTransactionState.UNKNOW);
        say("send", "cell", "transaction", "key", key, "started", started, "ended", now());
      } catch (Exception error) {
        say("send", "cell", "transaction", "key", key, "started", started, "ended", now(), "error", error);
      }
    }
    say("ready");
    Thread.sleep(Long.MAX_VALUE);
  }

  /** Signs as the sender or the reader of a feature. */
  private RPCHook hook(String feature, String role) throws ReflectiveOperationException {
    return Signing.of(SECRET.isEmpty() ? "" : prefix + "-" + feature + "-" + role, SECRET);
  }

  private DefaultMQProducer startProducer(String feature) throws Exception {
    return startProducer(feature, prefix + "-" + feature + "-senders", hook(feature, "sender"));
  }

  private DefaultMQProducer startProducer(String feature, String group, RPCHook hook) throws Exception {
    DefaultMQProducer producer;
    if (feature.equals("transaction")) {
      TransactionMQProducer transactional = new TransactionMQProducer(group, hook);
      // A producer is known to the brokers by its heartbeats; 30 s is the default.
      transactional.setHeartbeatBrokerInterval(1000);
      transactional.setTransactionListener(new Decisions());
      producer = transactional;
    } else {
      producer = new DefaultMQProducer(group, hook);
    }
    producer.setNamesrvAddr(servers);
    producer.setMqClientApiTimeout(ROUTE_TIMEOUT_MS);
    producer.start();
    producers.add(producer);
    return producer;
  }

  private Message build(String feature, int number, String key) {
    String tag = String.valueOf("abc".charAt(number % 3));
    Message message = new Message(prefix + "-" + feature, tag, key, key.getBytes(StandardCharsets.UTF_8));
    switch (feature) {
      case "delay": message.setDelayTimeLevel(1 + number % 4); break;
      case "timer": message.setDelayTimeMs(500 + number % 7 * 700); break;
      case "sql": message.putUserProperty("price", String.valueOf(number % 100)); break;
      default:
    }
    return message;
  }

  private void sendAll(String feature, DefaultMQProducer producer) {
    long begun = System.nanoTime();
    for (int number = 0; !stopped; number++) {
      send(feature, producer, number, feature + "-" + number);
      long wait = (long) ((number + 1) * 1e9 / rate) - (System.nanoTime() - begun);
      if (wait > 0) {
        java.util.concurrent.locks.LockSupport.parkNanos(wait);
      }
    }
  }

  private void send(String feature, DefaultMQProducer producer, int number, String key) {
    double started = now();
    Message message = build(feature, number, key);
    try {
      switch (feature) {
        case "orderly":
          producer.send(message, (queues, sent, place) -> queues.get((Integer) place % queues.size()), number);
          break;
        case "transaction":
          producer.sendMessageInTransaction(message, decision(key, false));
          break;
        case "request":
          request(producer, message, key, started);
          return;
        default:
          producer.send(message);
      }
      say("send", "cell", feature, "key", key, "started", started, "ended", now());
    } catch (Exception error) {
      say("send", "cell", feature, "key", key, "started", started, "ended", now(), "error", error);
    }
  }

  /** With a callback: in clients of 5.3 the waiting form returns when the request is sent (apache/rocketmq 9319). */
  private static void request(DefaultMQProducer producer, Message message, String key, double started) throws Exception {
    producer.request(message, new RequestCallback() {
      @Override
      public void onSuccess(Message reply) {
        say("send", "cell", "request", "key", key, "started", started, "ended", now(), "reply",
            new String(reply.getBody(), StandardCharsets.UTF_8));
      }

      @Override
      public void onException(Throwable error) {
        say("send", "cell", "request", "key", key, "started", started, "ended", now(), "error", error);
      }
    }, REQUEST_TIMEOUT_MS);
  }

  /** What the producers of the group decide about a message, told by its number: at once, or when they are asked. */
  private static LocalTransactionState decision(String key, boolean asked) {
    int number = Integer.parseInt(key.substring(key.indexOf('-') + 1));
    if (key.startsWith("orphan")) {
      return number % 2 == 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }
    boolean rolledBack = number % 10 == 0 || number % 10 == 2;
    if (!asked && (number % 10 == 1 || number % 10 == 2)) {
      return LocalTransactionState.UNKNOW;
    }
    return rolledBack ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
  }

  private static final class Decisions implements TransactionListener {
    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
      return (LocalTransactionState) decision;
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
      say("check", "cell", "transaction", "key", message.getKeys(), "at", now());
      return decision(message.getKeys(), true);
    }
  }

  private void startReaders(String feature) throws Exception {
    boolean two = feature.equals("orderly") || feature.equals("broadcast");
    for (String reader : two ? List.of("a", "b") : List.of("a")) {
      RPCHook hook = hook(feature, "reader");
      DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
          prefix + "-" + feature + "-readers", hook, new AllocateMessageQueueAveragely());
      consumer.setNamesrvAddr(servers);
      consumer.setMqClientApiTimeout(ROUTE_TIMEOUT_MS);
      consumer.setInstanceName("reader-" + feature + "-" + reader);
      consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
      consumer.setConsumeThreadMin(4);
      consumer.setConsumeThreadMax(4);
      if (feature.equals("broadcast")) {
        setBroadcasting(consumer);
      }
      if (feature.equals("retry")) {
        consumer.setMaxReconsumeTimes(3);
      }
      if (feature.equals("sql")) {
        consumer.subscribe(prefix + "-sql", MessageSelector.bySql("price BETWEEN 50 AND 99"));
      } else {
        consumer.subscribe(prefix + "-" + feature, feature.equals("tag") ? "a || c" : "*");
      }
      DefaultMQProducer replier =
          feature.equals("request") ? startProducer("replies", prefix + "-replies-senders", hook) : null;
      if (feature.equals("orderly")) {
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
          messages.forEach(message -> tell(feature, reader, message));
          return ConsumeOrderlyStatus.SUCCESS;
        });
      } else {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            take(feature, reader, messages.get(0), replier));
      }
      consumer.start();
      consumers.add(consumer);
    }
  }

  private static void tell(String feature, String reader, MessageExt message) {
    say("message", "cell", feature, "reader", reader, "key", message.getKeys(), "at", now(), "tried",
        message.getReconsumeTimes(), "queue", message.getQueueId(), "offset", message.getQueueOffset());
  }

  private static ConsumeConcurrentlyStatus take(
      String feature, String reader, MessageExt message, DefaultMQProducer replier) {
    tell(feature, reader, message);
    if (replier != null) {
      try {
        byte[] reply = ("reply to " + message.getKeys()).getBytes(StandardCharsets.UTF_8);
        replier.send(MessageUtil.createReplyMessage(message, reply));
      } catch (Exception error) {
        say("unreplied", "cell", feature, "key", message.getKeys(), "error", error);
      }
    }
    boolean again = feature.equals("retry") && message.getReconsumeTimes() < failures(message.getKeys());
    return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
  }

  /** How many attempts of a message fail, told by its number. */
  private static int failures(String key) {
    int place = Integer.parseInt(key.substring(key.indexOf('-') + 1)) % 20;
    return place == 0 ? Integer.MAX_VALUE : place == 1 ? 1 : place == 2 ? 2 : 0;
  }

  /** By reflection: the enum MessageModel moved to another package with RocketMQ 5. */
  @SuppressWarnings({"unchecked", "rawtypes"})
  private static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
    for (Method method : DefaultMQPushConsumer.class.getMethods()) {
      if (method.getName().equals("setMessageModel")) {
        method.invoke(consumer, Enum.valueOf((Class) method.getParameterTypes()[0], "BROADCASTING"));
      }
    }
  }
}
