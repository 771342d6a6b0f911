import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * RocketMQ's SQL92 filter. A line in is a filter and names and values of properties, in Base64 with tabs between them; a
 * line out is `selected`, `passed` (false, unknown, or evaluation failed) or `refused` (the filter did not parse).
 */
public final class FilterTwin {
  private static final class Properties extends HashMap<String, String> implements EvaluationContext {
    @Override
    public Object get(String name) {
      return super.get(name);
    }

    @Override
    public Map<String, Object> keyValues() {
      return new HashMap<>(this);
    }
  }

  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    StringBuilder out = new StringBuilder();
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.append(outcome(line.split("\t", -1))).append('\n');
    }
    System.out.print(out);
  }

  private static String outcome(String[] fields) {
    Properties properties = new Properties();
    for (int at = 1; at < fields.length; at += 2) {
      properties.put(decoded(fields[at]), decoded(fields[at + 1]));
    }
    Expression filter;
    try {
      filter = SelectorParser.parse(decoded(fields[0]));
    } catch (MQFilterException error) {
      return "refused";
    }
    try {
      return Boolean.TRUE.equals(filter.evaluate(properties)) ? "selected" : "passed";
    } catch (Exception error) {
      return "passed"; // as the broker's ExpressionMessageFilter does
    }
  }

  private static String decoded(String text) {
    return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
  }
}
