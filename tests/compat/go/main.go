// The Go client's side of the matrix (tests/compat/matrix): senders and readers of several features in one process.
// Arguments and lines are those that tests/compat/matrix/programs.py describes. With "consume" it is one orderly
// consumer, with those of cpp_client.py; with "send" it is one producer of a number of messages (send.go), and
// with "produce" one that gives up what is refused (produce.go).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const requestTimeout = 20 * time.Second

var (
	servers []string
	prefix  string
	rate    float64
	output  sync.Mutex
	stopped atomic.Bool
)

type fields map[string]any

func say(event string, more fields) {
	line := fields{"event": event}
	for name, value := range more {
		line[name] = value
	}
	text, _ := json.Marshal(line)
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func now() float64 {
	return float64(time.Now().UnixMilli()) / 1000
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func numberOf(key string) int {
	number, err := strconv.Atoi(key[strings.LastIndex(key, "-")+1:])
	check(err)
	return number
}

// sender sends one message; it is a plain producer or one of transactions.
type sender struct {
	plain         rocketmq.Producer
	transactional rocketmq.TransactionProducer
}

func resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver(servers)
}

// credentials are those of a feature's sender or reader; empty without RAFTMQ_MATRIX_SECRET: nothing is signed.
func credentials(feature string, role string) primitive.Credentials {
	secret := os.Getenv("RAFTMQ_MATRIX_SECRET")
	if secret == "" {
		return primitive.Credentials{}
	}
	return primitive.Credentials{AccessKey: prefix + "-" + feature + "-" + role, SecretKey: secret}
}

func startSender(feature string, user primitive.Credentials) sender {
	options := []producer.Option{
		producer.WithNsResolver(resolver()),
		producer.WithCredentials(user),
		producer.WithGroupName(prefix + "-" + feature + "-senders"),
		producer.WithInstanceName("sender-" + feature),
		producer.WithRetry(2),
	}
	if feature == "orderly" {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	if feature == "transaction" {
		transactional, err := rocketmq.NewTransactionProducer(decisions{}, options...)
		check(err)
		check(transactional.Start())
		return sender{transactional: transactional}
	}
	plain, err := rocketmq.NewProducer(options...)
	check(err)
	check(plain.Start())
	return sender{plain: plain}
}

func build(feature string, number int, key string) *primitive.Message {
	message := primitive.NewMessage(prefix+"-"+feature, []byte(key))
	message.WithKeys([]string{key})
	message.WithTag(string("abc"[number%3]))
	switch feature {
	case "delay":
		message.WithDelayTimeLevel(1 + number%4)
	case "timer":
		message.WithProperty("TIMER_DELAY_MS", strconv.Itoa(500+number%7*700))
	case "sql":
		message.WithProperty("price", strconv.Itoa(number%100))
	case "orderly":
		message.WithShardingKey(strconv.Itoa(number % 16))
	}
	return message
}

func (s sender) send(feature string, number int, key string) {
	message := build(feature, number, key)
	started := now()
	var err error
	var reply *primitive.Message
	switch feature {
	case "transaction":
		_, err = s.transactional.SendMessageInTransaction(context.Background(), message)
	case "request":
		reply, err = s.plain.Request(context.Background(), requestTimeout, message)
	default:
		_, err = s.plain.SendSync(context.Background(), message)
	}
	line := fields{"cell": feature, "key": key, "started": started, "ended": now()}
	if err != nil {
		line["error"] = err.Error()
	} else if feature == "request" {
		line["reply"] = string(reply.Body)
	}
	say("send", line)
}

func (s sender) sendAll(feature string) {
	begun := time.Now()
	var waiting sync.WaitGroup
	for number := 0; !stopped.Load(); number++ {
		key := fmt.Sprintf("%s-%d", feature, number)
		if feature == "request" {
			waiting.Add(1)
			go func() {
				defer waiting.Done()
				s.send(feature, number, key)
			}()
		} else {
			s.send(feature, number, key)
		}
		time.Sleep(time.Until(begun.Add(time.Duration(float64(number+1) / rate * float64(time.Second)))))
	}
	waiting.Wait()
}

// decision is what the producers of the group decide about a message, told by its number: at once, or when asked.
func decision(key string, asked bool) primitive.LocalTransactionState {
	number := numberOf(key)
	rolledBack := number%10 == 0 || number%10 == 2
	if strings.HasPrefix(key, "orphan") {
		if !asked {
			return primitive.UnknowState
		}
		rolledBack = number%2 == 1
	} else if !asked && (number%10 == 1 || number%10 == 2) {
		return primitive.UnknowState
	}
	if rolledBack {
		return primitive.RollbackMessageState
	}
	return primitive.CommitMessageState
}

type decisions struct{}

func (decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return decision(message.GetKeys(), false)
}

func (decisions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	say("check", fields{"cell": "transaction", "key": message.GetKeys(), "at": now()})
	return decision(message.GetKeys(), true)
}

// failures is how many attempts at a message fail, told by its number.
func failures(key string) int32 {
	switch numberOf(key) % 20 {
	case 0:
		return 99
	case 1:
		return 1
	case 2:
		return 2
	}
	return 0
}

func startReader(feature string, reader string) rocketmq.PushConsumer {
	user := credentials(feature, "reader")
	options := []consumer.Option{
		consumer.WithNsResolver(resolver()),
		consumer.WithCredentials(user),
		consumer.WithGroupName(prefix + "-" + feature + "-readers"),
		consumer.WithInstance("reader-" + feature + "-" + reader),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(feature == "orderly"),
		consumer.WithConsumeGoroutineNums(4),
	}
	if feature == "broadcast" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if feature == "retry" {
		options = append(options, consumer.WithMaxReconsumeTimes(3))
	}
	push, err := rocketmq.NewPushConsumer(options...)
	check(err)
	selector := consumer.MessageSelector{}
	if feature == "tag" {
		selector = consumer.MessageSelector{Type: consumer.TAG, Expression: "a || c"}
	} else if feature == "sql" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: "price BETWEEN 50 AND 99"}
	}
	var replier sender
	if feature == "request" {
		replier = startSender("replies", user)
	}
	check(push.Subscribe(prefix+"-"+feature, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				if !take(feature, reader, message, replier) {
					return consumer.ConsumeRetryLater, nil
				}
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(push.Start())
	return push
}

// take tells of a message; false if it is to come again.
func take(feature string, reader string, message *primitive.MessageExt, replier sender) bool {
	key := message.GetKeys()
	say("message", fields{"cell": feature, "reader": reader, "key": key, "at": now(), "tried": message.ReconsumeTimes,
		"queue": message.Queue.QueueId, "offset": message.QueueOffset})
	if replier.plain != nil {
		reply, err := consumer.CreateReplyMessage(message, nil)
		if err == nil {
			reply.Body = []byte("reply to " + key) // CreateReplyMessage of 2.1.2 drops it
			_, err = replier.plain.SendSync(context.Background(), reply)
		}
		if err != nil {
			say("unreplied", fields{"cell": feature, "key": key, "error": err.Error()})
		}
	}
	return feature != "retry" || message.ReconsumeTimes >= failures(key)
}

func leaveOrphans(count int) {
	orphans := startSender("transaction", credentials("transaction", "sender"))
	for number := 0; number < count; number++ {
		orphans.send("transaction", number, fmt.Sprintf("orphan-%d", number))
	}
	say("ready", nil)
	select {}
}

// consume reads one topic in order until its input ends.
func consume(topic string, flags []string) {
	if len(flags) != 3 || flags[0] != "--group" || flags[2] != "--orderly" {
		check(fmt.Errorf("consume SERVERS TOPIC --group GROUP --orderly"))
	}
	push, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(resolver()),
		consumer.WithGroupName(flags[1]),
		consumer.WithInstance(strconv.Itoa(os.Getpid())),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(true),
	)
	check(err)
	check(push.Subscribe(topic, consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				say("message", fields{"key": message.GetKeys(), "at": now(), "queue_id": message.Queue.QueueId,
					"queue_offset": message.QueueOffset, "tried": message.ReconsumeTimes})
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(push.Start())
	say("ready", nil)
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
	}
	check(push.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	rlog.SetOutputPath(os.Getenv("HOME") + "/rocketmq-go.log")
	servers = strings.Split(os.Args[2], ";")
	if os.Args[1] == "consume" {
		consume(os.Args[3], os.Args[4:])
		return
	}
	if os.Args[1] == "produce" {
		produce(os.Args[3], os.Args[4:])
		return
	}
	if os.Args[1] == "send" {
		sendFromArguments(os.Args[3], os.Args[4], os.Args[5], os.Args[6])
		return
	}
	prefix = os.Args[3]
	var err error
	rate, err = strconv.ParseFloat(os.Args[4], 64)
	check(err)
	if os.Args[1] == "orphans" {
		leaveOrphans(int(rate))
	}
	var readers []rocketmq.PushConsumer
	senders := map[string]sender{}
	for _, feature := range os.Args[5:] {
		readers = append(readers, startReader(feature, "a"))
		if feature == "orderly" || feature == "broadcast" {
			readers = append(readers, startReader(feature, "b"))
		}
		senders[feature] = startSender(feature, credentials(feature, "sender"))
	}
	say("ready", nil)
	var sending sync.WaitGroup
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		if input.Text() == "go" {
			for feature, each := range senders {
				sending.Add(1)
				go func() {
					defer sending.Done()
					each.sendAll(feature)
				}()
			}
		} else {
			stopped.Store(true)
			sending.Wait()
			say("stopped", nil)
		}
	}
	for _, reader := range readers {
		reader.Shutdown()
	}
	say("done", nil)
}
