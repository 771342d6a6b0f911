import org.apache.rocketmq.remoting.RPCHook;

/** The client's own signatures. By name: their classes came into the client's jar with a later version than 4.9. */
final class Signing {
  private static final String ROOM = "org.apache.rocketmq.acl.common.";

  private Signing() {
  }

  /** Null without an access key: the client signs nothing. */
  static RPCHook of(String accessKey, String secretKey) throws ReflectiveOperationException {
    if (accessKey.isEmpty()) {
      return null;
    }
    Class<?> kind = Class.forName(ROOM + "SessionCredentials");
    Object credentials = kind.getConstructor(String.class, String.class).newInstance(accessKey, secretKey);
    return (RPCHook) Class.forName(ROOM + "AclClientRPCHook").getConstructor(kind).newInstance(credentials);
  }
}
