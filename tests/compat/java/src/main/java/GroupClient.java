import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.text.SimpleDateFormat;
import java.util.Date;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What groups do, in the Java client: one process, one JSON object per line out; it ends when its input does.
 *
 * request SERVERS TOPIC GROUP COUNT: asks COUNT times and waits for each reply, then says "done". reply SERVERS TOPIC GROUP:
 * answers each request. traced SERVERS TOPIC GROUP COUNT: sends COUNT messages with message trace. consume SERVERS TOPIC
 * GROUP [TAGS [FROM [MODEL]]]: TAGS such as "a || b", FROM is first, last or a time in ms, MODEL broadcasting or clustering.
 */
public final class GroupClient {
  public static void main(String[] args) throws Exception {
    switch (args[0]) {
      case "request": request(args); break;
      case "reply": reply(args); break;
      case "traced": traced(args); break;
      default: consume(args);
    }
    System.exit(0);
  }

  private static synchronized void say(String event, String key, String body) {
    System.out.println("{\"event\":\"" + event + "\",\"key\":\"" + key + "\",\"body\":\"" + body + "\"}");
    System.out.flush();
  }

  private static String text(Message message) {
    return new String(message.getBody(), StandardCharsets.UTF_8);
  }

  private static void request(String[] args) throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer(args[3]);
    producer.setNamesrvAddr(args[1]);
    producer.start();
    say("ready", "", "");
    for (int number = 0; number < Integer.parseInt(args[4]); number++) {
      Message asked = new Message(args[2], "", "ask-" + number, ("ask-" + number).getBytes(StandardCharsets.UTF_8));
      String key = "ask-" + number;
      CountDownLatch ended = new CountDownLatch(1);
      // With a callback: in clients of 5.3 the waiting form returns when the request is sent (apache/rocketmq 9319).
      producer.request(asked, new RequestCallback() {
        @Override
        public void onSuccess(Message reply) {
          say("answer", key, text(reply));
          ended.countDown();
        }

        @Override
        public void onException(Throwable error) {
          say("answer", key, String.valueOf(error).replace('"', ' ').replace('\n', ' '));
          ended.countDown();
        }
      }, 20_000);
      ended.await();
    }
    say("done", "", "");
    waitForInputEnd();
    producer.shutdown();
  }

  private static void reply(String[] args) throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer(args[3] + "-replies");
    producer.setNamesrvAddr(args[1]);
    producer.start();
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[3]);
    consumer.setNamesrvAddr(args[1]);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.subscribe(args[2], "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt message : messages) {
        try {
          byte[] body = ("reply to " + text(message)).getBytes(StandardCharsets.UTF_8);
          say("replied", message.getKeys(), producer.send(MessageUtil.createReplyMessage(message, body)).getMsgId());
        } catch (Exception error) {
          say("replied", message.getKeys(), String.valueOf(error).replace('"', ' ').replace('\n', ' '));
        }
      }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    say("ready", "", "");
    waitForInputEnd();
    consumer.shutdown();
    producer.shutdown();
  }

  private static void traced(String[] args) throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer(args[3], true, null);
    producer.setNamesrvAddr(args[1]);
    producer.start();
    say("ready", "", "");
    for (int number = 0; number < Integer.parseInt(args[4]); number++) {
      Message message = new Message(args[2], "", "traced-" + number, new byte[] {1});
      say("send", "traced-" + number, producer.send(message).getMsgId());
    }
    waitForInputEnd();
    producer.shutdown();
    say("done", "", "");
  }

  private static void consume(String[] args) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[3]);
    consumer.setNamesrvAddr(args[1]);
    String from = args.length > 5 ? args[5] : "first";
    if (from.equals("first")) {
      consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    } else if (from.equals("last")) {
      consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
    } else {
      consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
      consumer.setConsumeTimestamp(new SimpleDateFormat("yyyyMMddHHmmss").format(new Date(Long.parseLong(from))));
    }
    if (args.length > 6 && args[6].equals("broadcasting")) {
      setBroadcasting(consumer);
    }
    consumer.subscribe(args[2], args.length > 4 ? args[4] : "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt message : messages) {
        say("message", message.getKeys(), String.valueOf(message.getTags()));
      }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    say("ready", consumer.buildMQClientId(), "");
    waitForInputEnd();
    consumer.shutdown();
    say("done", "", "");
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

  private static void waitForInputEnd() throws IOException {
    while (System.in.read() >= 0) {
      // Only its end matters.
    }
  }
}
