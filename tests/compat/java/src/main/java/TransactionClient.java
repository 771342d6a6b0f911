import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A Java producer of transactions: one process, one JSON object per line out. Arguments: a word, name servers, topic, group,
 * prefix of the keys, how many messages, what it decides about message n (names of states, used in turn), and what it
 * answers when it is asked (DECIDED: what it has decided); then, if given, how many milliseconds it waits between two
 * messages, how many a request may take, how many it answers questions after its input has ended, and how often a send
 * that ends in an error is made again. Uses only what RocketMQ 4.9 has, so that one build runs on every version.
 */
public final class TransactionClient {
  private TransactionClient() {
  }

  public static void main(String[] args) throws Exception {
    String topic = args[2];
    String[] decisions = args[6].split(",");
    boolean asDecided = args[7].equals("DECIDED");
    LocalTransactionState always = asDecided ? null : LocalTransactionState.valueOf(args[7]);
    TransactionMQProducer producer = new TransactionMQProducer(args[3]);
    producer.setNamesrvAddr(args[1]);
    // A producer is known to the brokers by its heartbeats; 30 s is the default.
    producer.setHeartbeatBrokerInterval(1000);
    producer.setTransactionListener(new TransactionListener() {
      @Override
      public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
        return LocalTransactionState.valueOf((String) decision);
      }

      @Override
      public LocalTransactionState checkLocalTransaction(MessageExt message) {
        LocalTransactionState onCheck = always;
        if (asDecided) {
          int number = Integer.parseInt(message.getKeys().substring(args[4].length() + 1));
          onCheck = LocalTransactionState.valueOf(decisions[number % decisions.length]);
        }
        say("check", message.getKeys(), message.getTransactionId() + " " + message.getTopic(), onCheck.name());
        return onCheck;
      }
    });
    if (args.length > 9) {
      producer.setSendMsgTimeout(Integer.parseInt(args[9]));
      producer.setMqClientApiTimeout(Integer.parseInt(args[9]));
    }
    producer.start();
    int again = args.length > 11 ? Integer.parseInt(args[11]) : 0;
    long paceMs = args.length > 8 ? Long.parseLong(args[8]) : 0;
    AtomicBoolean ended = new AtomicBoolean();
    Thread input = new Thread(() -> {
      waitForInputEnd();
      ended.set(true);
    });
    input.start();
    for (int number = 0; number < Integer.parseInt(args[5]) && !ended.get(); number++) {
      Thread.sleep(paceMs);
      String key = args[4] + "-" + number;
      for (int left = again; ; left--) {
        Message message = new Message(topic, "tag", key, key.getBytes(StandardCharsets.UTF_8));
        try {
          TransactionSendResult result = producer.sendMessageInTransaction(message, decisions[number % decisions.length]);
          say("send", key, result.getTransactionId(), result.getLocalTransactionState().name());
          break;
        } catch (MQClientException error) {
          if (left <= 0) {
            throw error;
          }
          say("gave up", key, String.valueOf(error.getCause()).replaceAll("[^ -!#-\\[\\]-~]", " "), "");
          Thread.sleep(200);
        }
      }
    }
    say("ready", "", "", "");
    input.join();
    Thread.sleep(args.length > 10 ? Long.parseLong(args[10]) : 0);
    producer.shutdown();
    say("done", "", "", "");
    System.exit(0);
  }

  private static synchronized void say(String event, String key, String about, String state) {
    System.out.println("{\"event\":\"" + event + "\",\"key\":\"" + key + "\",\"about\":\"" + about + "\",\"state\":\""
        + state + "\"}");
    System.out.flush();
  }

  private static void waitForInputEnd() {
    try {
      while (System.in.read() >= 0) {
        // Only its end matters.
      }
    } catch (IOException error) {
      say("error", "", error.toString(), "");
    }
  }
}
