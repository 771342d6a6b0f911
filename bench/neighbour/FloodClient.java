import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer that sends as fast as it is answered, with a fixed number of sends in flight. Arguments: name servers,
 * topic, sends in flight, seconds. At the end it prints the number of sends that were stored and of those that were not.
 */
public final class FloodClient {
  private static final byte[] BODY = new byte[1024];

  public static void main(String[] args) throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer("flood");
    producer.setNamesrvAddr(args[0]);
    producer.setRetryTimesWhenSendAsyncFailed(0);
    producer.setSendMsgTimeout(10_000);
    producer.start();
    int window = Integer.parseInt(args[2]);
    Semaphore places = new Semaphore(window);
    AtomicLong stored = new AtomicLong();
    AtomicLong failed = new AtomicLong();
    SendCallback callback =
        new SendCallback() {
          @Override
          public void onSuccess(SendResult result) {
            stored.incrementAndGet();
            places.release();
          }

          @Override
          public void onException(Throwable error) {
            failed.incrementAndGet();
            places.release();
          }
        };
    long end = System.nanoTime() + (long) (Double.parseDouble(args[3]) * 1e9);
    while (System.nanoTime() < end) {
      places.acquire();
      producer.send(new Message(args[1], BODY), callback);
    }
    places.acquire(window);
    System.out.println(stored.get() + " " + failed.get());
    System.exit(0);
  }
}
