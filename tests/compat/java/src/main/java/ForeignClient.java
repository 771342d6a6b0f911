import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * The Java client: one process, one JSON object per line out. Arguments and lines are those of cpp_client.py, plus
 * `--batch N`: N messages per request, `--max-times N`: the consumer's own maximum of tries, and `--select`: message n is
 * for the queue at place n of the client's list. `--hash`: it is for the one that SelectMessageQueueByHash chooses by its
 * key or, with `--keys N`, by the number n % N as text. `--oneway`: nothing is answered. `--broker-assigns`: the consumer
 * asks which queues are its own, as POP consumers do. `--orderly`: it locks its queues, and a message that fails stops its
 * queue. `--sql X`: the consumer wants what the filter X selects; if the broker refuses it, the line "refused" has the code
 * and the remark.
 * `--access-key N --secret-key S`: requests are signed.
 * `--timeout-ms N`: a send and a request for a route may take so long. `--threads N`: so many threads share one
 * producer; each waits `--pace-ms` between its sends. `--rate N`: together they send N messages a second; once they are
 * late they do not wait. `--again N`: what ends in an error is sent again, up to N times; each such error is a line "gave up".
 * `--delay-level N` and `--delay-ms N`: messages are to be delivered later. `--recall N`: every Nth is recalled, twice.
 */
public final class ForeignClient {
  private final List<String> positionals = new ArrayList<>();
  private String group = "";
  private String prefix = "java";
  private int count = 0;
  private int batch = 1;
  private int threads = 1;
  private int timeoutMs = 3000;
  private double paceMs = 0;
  private double rate = 0;
  private int again = 0;
  private boolean same = false;
  private int fail = 0;
  private int maxTimes = -1;
  private boolean brokerAssigns = false;
  private boolean select = false;
  private boolean hash = false;
  private boolean oneway = false;
  private int keys = 0;
  private boolean orderly = false;
  private int delayLevel = 0;
  private long delayMs = 0;
  private int recall = 0;
  private int sent = 0;
  private String sql = null;
  private String accessKey = "";
  private String secretKey = "";

  public static void main(String[] args) throws Exception {
    ForeignClient client = new ForeignClient(args);
    if (client.positionals.get(0).equals("produce")) {
      client.produce();
    } else {
      client.consume();
    }
    System.exit(0);
  }

  private ForeignClient(String[] args) {
    for (int at = 0; at < args.length; at++) {
      switch (args[at]) {
        case "--group": group = args[++at]; break;
        case "--prefix": prefix = args[++at]; break;
        case "--count": count = Integer.parseInt(args[++at]); break;
        case "--batch": batch = Integer.parseInt(args[++at]); break;
        case "--timeout-ms": timeoutMs = Integer.parseInt(args[++at]); break;
        case "--threads": threads = Integer.parseInt(args[++at]); break;
        case "--pace-ms": paceMs = Double.parseDouble(args[++at]); break;
        case "--rate": rate = Double.parseDouble(args[++at]); break;
        case "--again": again = Integer.parseInt(args[++at]); break;
        case "--same": same = true; break;
        case "--fail": fail = Integer.parseInt(args[++at]); break;
        case "--broker-assigns": brokerAssigns = true; break;
        case "--max-times": maxTimes = Integer.parseInt(args[++at]); break;
        case "--select": select = true; break;
        case "--hash": hash = true; break;
        case "--keys": keys = Integer.parseInt(args[++at]); break;
        case "--oneway": oneway = true; break;
        case "--orderly": orderly = true; break;
        case "--delay-level": delayLevel = Integer.parseInt(args[++at]); break;
        case "--delay-ms": delayMs = Long.parseLong(args[++at]); break;
        case "--recall": recall = Integer.parseInt(args[++at]); break;
        case "--sql": sql = args[++at]; break;
        case "--access-key": accessKey = args[++at]; break;
        case "--secret-key": secretKey = args[++at]; break;
        default: positionals.add(args[at]);
      }
    }
  }

  private RPCHook hook() throws ReflectiveOperationException {
    return Signing.of(accessKey, secretKey);
  }

  private static synchronized void say(String event, Object... fields) {
    StringBuilder line = new StringBuilder("{\"event\":\"").append(event).append('"');
    for (int at = 0; at < fields.length; at += 2) {
      Object value = fields[at + 1];
      line.append(",\"").append(fields[at]).append("\":");
      line.append(value instanceof Number || value == null ? String.valueOf(value) : quoted(value.toString()));
    }
    System.out.println(line.append('}'));
    System.out.flush();
  }

  private static String quoted(String text) {
    String escaped = text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n").replace("\t", " ");
    return '"' + escaped.replace("\r", "") + '"';
  }

  private String key(int number) {
    return prefix + "-" + number;
  }

  private Message build(int number) {
    byte[] head = (key(number) + " ").getBytes(StandardCharsets.UTF_8);
    byte[] body = new byte[head.length + 255];
    System.arraycopy(head, 0, body, 0, head.length);
    for (int value = 1; value < 256; value++) {
      body[head.length + value - 1] = (byte) value;
    }
    Message message = new Message(positionals.get(2), number % 2 == 0 ? "even" : "odd", key(number), body);
    message.putUserProperty("shade", "blue " + number);
    if (delayLevel > 0) {
      message.setDelayTimeLevel(delayLevel);
    }
    if (delayMs > 0) {
      message.setDelayTimeMs(delayMs);
    }
    return message;
  }

  private static double now() {
    return System.currentTimeMillis() / 1000.0;
  }

  private void produce() throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer(group, hook());
    producer.setNamesrvAddr(positionals.get(1));
    producer.setSendMsgTimeout(timeoutMs);
    producer.setMqClientApiTimeout(timeoutMs);
    producer.start();
    say("ready");
    AtomicBoolean ended = new AtomicBoolean();
    Thread input = new Thread(() -> {
      waitForInputEnd();
      ended.set(true);
    });
    input.setDaemon(true);
    input.start();
    if (threads > 1) {
      sendInThreads(producer, ended);
      producer.shutdown();
      say("done");
      return;
    }
    Message one = same ? build(0) : null;
    for (int number = 0; count > 0 ? number < count : !ended.get(); number += batch) {
      if (batch > 1) {
        sendBatch(producer, number);
      } else if (select || hash) {
        sendSelected(producer, number);
      } else if (oneway) {
        producer.sendOneway(build(number));
        say("send", "key", key(number));
      } else {
        send(producer, same ? one : build(number), key(same ? 0 : number));
      }
      Thread.sleep((long) paceMs);
    }
    producer.shutdown();
    say("done");
  }

  private void sendInThreads(DefaultMQProducer producer, AtomicBoolean ended) throws InterruptedException {
    AtomicInteger next = new AtomicInteger();
    long began = System.nanoTime();
    List<Thread> all = new ArrayList<>();
    for (int at = 0; at < threads; at++) {
      Thread thread = new Thread(() -> {
        try {
          for (int number = next.getAndIncrement();
              count > 0 ? number < count : !ended.get(); number = next.getAndIncrement()) {
            if (rate > 0) {
              TimeUnit.NANOSECONDS.sleep(began + (long) (number / rate * 1e9) - System.nanoTime());
            }
            send(producer, build(number), key(number));
            Thread.sleep((long) paceMs);
          }
        } catch (InterruptedException error) {
          Thread.currentThread().interrupt();
        }
      });
      thread.start();
      all.add(thread);
    }
    for (Thread thread : all) {
      thread.join();
    }
  }

  private void send(DefaultMQProducer producer, Message message, String key) throws InterruptedException {
    double started = now();
    for (int left = again; ; left--) {
      try {
        SendResult result = producer.send(message);
        say("send", "key", key, "started", started, "ended", now(), "msg_id", result.getMsgId(),
            "queue_id", result.getMessageQueue().getQueueId(), "queue_offset", result.getQueueOffset(),
            "status", result.getSendStatus());
        if (recall > 0 && sent++ % recall == 0) {
          recallTwice(producer, message.getTopic(), key, result);
        }
        return;
      } catch (InterruptedException error) {
        throw error;
      } catch (Exception error) {
        say(left > 0 ? "gave up" : "send", "key", key, "started", started, "ended", now(), "error", whole(error));
        if (left <= 0) {
          return;
        }
        TimeUnit.MILLISECONDS.sleep(200);
      }
    }
  }

  private void recallTwice(DefaultMQProducer producer, String topic, String key, SendResult result) throws Exception {
    for (int time = 0; time < 2; time++) {
      String id = producer.recallMessage(topic, result.getRecallHandle());
      say("recall", "key", key, "id", id, "msg_id", result.getMsgId());
    }
  }

  /** An error with its cause: the client's own text does not say which answer it got. */
  private static String whole(Exception error) {
    return error.getCause() == null ? error.toString() : error + ", caused by " + error.getCause();
  }

  private MessageQueue choose(List<MessageQueue> queues, Message message, int number) {
    String key = keys > 0 ? String.valueOf(number % keys) : message.getKeys();
    return hash ? new SelectMessageQueueByHash().select(queues, message, key) : queues.get(number % queues.size());
  }

  /** To a chosen queue: the client does not repeat such a send, so the broker name that failed is told. */
  private void sendSelected(DefaultMQProducer producer, int number) throws InterruptedException {
    double started = now();
    String[] broker = {""};
    try {
      SendResult result = producer.send(build(number), (queues, message, place) -> {
        MessageQueue chosen = choose(queues, message, (Integer) place);
        broker[0] = chosen.getBrokerName();
        return chosen;
      }, number);
      say("send", "key", key(number), "started", started, "ended", now(), "msg_id", result.getMsgId(),
          "broker", broker[0], "queue_id", result.getMessageQueue().getQueueId(),
          "queue_offset", result.getQueueOffset(), "status", result.getSendStatus());
    } catch (InterruptedException error) {
      throw error;
    } catch (Exception error) {
      say("send", "key", key(number), "started", started, "ended", now(), "broker", broker[0], "error", whole(error));
    }
  }

  /** All messages of a batch have the same outcome; the reply names the first one's offset. */
  private void sendBatch(DefaultMQProducer producer, int first) throws Exception {
    List<Message> messages = new ArrayList<>();
    for (int number = first; number < first + batch; number++) {
      messages.add(build(number));
    }
    double started = now();
    SendResult result = producer.send(messages);
    String[] ids = result.getMsgId().split(",");
    for (int at = 0; at < batch; at++) {
      say("send", "key", key(first + at), "started", started, "ended", now(), "msg_id", ids[at],
          "queue_offset", result.getQueueOffset() + at, "status", result.getSendStatus());
    }
  }

  /** Tells of the messages; true if one of them is to come again. */
  private boolean take(List<MessageExt> messages) {
    boolean again = false;
    for (MessageExt message : messages) {
      again |= message.getReconsumeTimes() < fail;
      say("message", "at", now(), "key", message.getKeys(), "tag", message.getTags(),
          "shade", message.getUserProperty("shade"), "body", Base64.getEncoder().encodeToString(message.getBody()),
          "msg_id", message.getMsgId(), "queue_id", message.getQueueId(), "queue_offset", message.getQueueOffset(),
          "tried", message.getReconsumeTimes());
    }
    return again;
  }

  private void consume() throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook(), new AllocateMessageQueueAveragely());
    consumer.setNamesrvAddr(positionals.get(1));
    consumer.setMqClientApiTimeout(timeoutMs);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setMaxReconsumeTimes(maxTimes);
    if (brokerAssigns) {
      consumer.setClientRebalance(false); // unknown to 4.9
    }
    if (sql == null) {
      consumer.subscribe(positionals.get(2), "*");
    } else {
      consumer.subscribe(positionals.get(2), MessageSelector.bySql(sql));
    }
    if (orderly) {
      consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
          take(messages) ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS);
    } else {
      consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
          take(messages) ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
    }
    try {
      consumer.start();
    } catch (MQClientException refused) {
      say("refused", "code", refused.getResponseCode(), "remark", refused.getErrorMessage());
      return;
    }
    say("ready");
    waitForInputEnd();
    consumer.shutdown();
    say("done");
  }

  private static void waitForInputEnd() {
    try {
      while (System.in.read() >= 0) {
        // Only its end matters.
      }
    } catch (IOException error) {
      say("error", "error", error);
    }
  }
}
